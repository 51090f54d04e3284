"""Reading CIFAR-10's published pickles without trusting them.

A pickle may name any function for the reader to call. This reader knows exactly the names that
occur in a dictionary of lists, strings and NumPy arrays, and refuses every other.
"""

from __future__ import annotations

import io
import pickle

import numpy as np

__all__ = ["load_pickle"]


def _encode(text: str, encoding: str) -> bytes:
    # How Python 3 spells bytes in an old pickle. Other codecs (zip, bz2) could unfold without end.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding!r} does not belong here")
    return text.encode("latin1")


_RECONSTRUCT: object = np.empty(0).__reduce__()[0]  # the same under any NumPy
_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,  # NumPy 1, the published files
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,  # NumPy 2
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def load_pickle(content: bytes) -> object:
    """The object in `content`; UnpicklingError for whatever is not plain data and arrays.

    Strings written by Python 2, as in the published files, come back as bytes.
    """
    try:
        return _RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged stream can fail in any opcode, with any exception
        raise pickle.UnpicklingError(f"it breaks off ({error})") from error
