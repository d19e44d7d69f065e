"""What speed says of itself."""

from quantkv.measurements.kind import Kind


class SpeedKind(Kind):
    """Times of prefill and decoding, beside `DynamicCache`."""

    name = "speed"
    of_machine = True
    together = True


KIND = SpeedKind()
