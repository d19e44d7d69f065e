import pytest

from quantkv.errors import QuantKVError, UnsupportedError


def test_errors_are_caught_as_value_errors_and_unsupported_as_both() -> None:
    assert issubclass(QuantKVError, ValueError)
    with pytest.raises(QuantKVError):
        raise UnsupportedError("not here")
