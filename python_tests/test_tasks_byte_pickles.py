"""Pickles of arrays of bytes: numpy's forms are read, and a file can neither call nor promise anything."""

import os
import pickle
import struct
import time

import numpy as np
import pytest

from softrank_ext.tasks.byte_pickles import read_byte_pickle

ROWS = np.arange(12, dtype=np.uint8).reshape(3, 4)


def short(text: bytes) -> bytes:
    """A text of Python 2."""
    return b"U" + bytes([len(text)]) + text


# As Python 2 wrote CIFAR-10: {"data": array, "labels": [6, 9], "batch_label": "x"}, places in memory included.
PYTHON_2 = b"".join((
    b"\x80\x02}q\x01(", short(b"data"), b"q\x02cnumpy.core.multiarray\n_reconstruct\n", b"q\x03cnumpy\nndarray\nq\x04",
    b"K\x00\x85", short(b"b"), b"\x87Rq\x05(K\x01K\x03K\x04\x86cnumpy\ndtype\n", short(b"u1"), b"K\x00K\x01\x87R(K\x03",
    short(b"|"),
    b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89", short(ROWS.tobytes()), b"tb",
    short(b"labels"), b"q\x06](K\x06K\x09e",
    short(b"batch_label"), short(b"x"), b"u.",
))  # fmt: skip


def test_all_forms_are_read():
    found = read_byte_pickle(PYTHON_2)
    assert np.array_equal(found["data"], ROWS) and found["data"].dtype == np.uint8
    assert found["labels"] == [6, 9] and found["batch_label"] == "x"
    for protocol in (3, 4, 5):
        content = {
            "data": ROWS,
            "labels": [6, 300, -1],
            "names": ["é", b"x"],
            "one": (True, None, ()),
            "nested": {"a": []},
        }
        found = read_byte_pickle(pickle.dumps(content, protocol))
        assert np.array_equal(found.pop("data"), content.pop("data"))
        assert found == content


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(os.system, 4), "it must hold arrays only, it asks for 'posix.system'"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "arrays must be made as numpy writes them, got ndarray"),
        (b"\x80\x02cnumpy\ndtype\n" + short(b"V9") + b"\x85R.", "arrays must be of uint8, got dtype 'V9'"),
        (PYTHON_2.replace(b"NNNJ", b"NN)J"), "arrays must be of plain uint8, got a tuple"),
        (PYTHON_2.replace(short(b"|"), short(b"<")), "arrays must be of plain uint8, got 3, '<', None"),
        (PYTHON_2.replace(b"K\x03K\x04\x86c", b"K\x04K\x04\x86c"), r"an array of shape \(4, 4\) must have 16 bytes"),
        (PYTHON_2.replace(b"K\x03K\x04\x86c", b"K\x03\x88\x86c"), "an array must be rows of uint8"),
        (PYTHON_2.replace(b"tb\x89", b"tb\x88"), "an array must be rows of uint8"),
        (PYTHON_2[:-1], "pickle exhausted before seeing STOP"),
        (b"\x80\x02]K\x01K\x02s.", "a list is not what is asked for"),
        (b"\x80\x02}K\x01K\x02s.", "a int is not what is asked for"),
        (b"\x80\x02h\x05.", r"its instructions do not fit each other: KeyError\(5\)"),
        (b"\x80\x02K\x01t.", "its instructions do not fit each other: IndexError"),
        (b"\x80\x02.", "its instructions do not fit each other: IndexError"),
        (b"(S'x'\nios\nsystem\n.", "it must hold plain values and arrays only, it has the instruction STRING"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc", "expected 1099511627776 bytes in a bytes8, but only 3"),
        (b"I" + b"9" * 10**5 + b"\n.", "Exceeds the limit"),
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_told(data, message):
    with pytest.raises(ValueError, match=message):
        read_byte_pickle(data)


def test_a_small_file_cannot_ask_for_much():
    """Python's unpickler took 16 GB for a place in its memory, and hashed tuples of 2^60 parts for hours."""
    start = time.monotonic()
    assert read_byte_pickle(b"\x80\x02}r\xff\xff\xff\x7f.") == {}
    doubled = b"".join(b"q" + bytes([number]) + b"h" + bytes([number]) + b"\x86" for number in range(60))
    with pytest.raises(ValueError, match="a tuple is not what is asked for"):
        read_byte_pickle(b"\x80\x02})" + doubled + b"K\x01s.")
    with pytest.raises(ValueError, match="arrays must be of plain uint8, got a tuple"):
        read_byte_pickle(b"\x80\x02cnumpy\ndtype\n" + short(b"u1") + b"\x85R(K\x03)" + doubled + b"NNNtb.")
    with pytest.raises(ValueError, match="arrays must be of plain uint8, got a tuple"):
        read_byte_pickle(b"\x80\x02cnumpy\ndtype\n" + short(b"u1") + b"\x85R)" + doubled + b"b.")
    assert time.monotonic() - start < 5
