"""What memory says of itself."""

from quantkv.measurements.kind import Kind


class MemoryKind(Kind):
    """Bytes held, and peaks of prefill and decoding."""

    name = "memory"
    version = 2
    of_machine = True
    alone = True


KIND = MemoryKind()
