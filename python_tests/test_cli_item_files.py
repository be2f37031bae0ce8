"""Items from files and orders to files."""

import csv
import io
import json
import sys
import zipfile

import numpy as np
import pytest
import torch

from softrank_ext.cli import item_files
from softrank_ext.cli.item_files import ItemFile, read_items, write_orders
from softrank_ext.sampling import Samples


def test_npz(tmp_path):
    items, mask = np.random.default_rng(0).random((2, 3, 4)), np.array([[True, True, True], [True, False, True]])
    np.savez(tmp_path / "a.npz", items=items, mask=mask)
    read = read_items(tmp_path / "a.npz")
    assert read.items.dtype == torch.float32 and read.names is None
    np.testing.assert_allclose(read.items.numpy(), items, rtol=1e-6)
    assert np.array_equal(read.mask.numpy(), mask)
    np.savez(tmp_path / "b.npz", items=np.arange(6).reshape(2, 3))
    assert read_items(tmp_path / "b.npz").items.tolist() == [[0, 1, 2], [3, 4, 5]]
    np.savez(tmp_path / "c.npz", points=items)
    with pytest.raises(ValueError, match=r"c\.npz must have an array named items, got points"):
        read_items(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", items=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="must have the 8 bytes of its header"):
        read_items(tmp_path / "d.npz")


@pytest.mark.parametrize("header", ("", "x,y\n"))
def test_csv(tmp_path, header):
    (tmp_path / "a.csv").write_text(header + "0.5,1\n\n2,-3e-1\n4,5\n")
    read = read_items(tmp_path / "a.csv")
    torch.testing.assert_close(read.items, torch.tensor([[[0.5, 1.0], [2.0, -0.3], [4.0, 5.0]]]))


@pytest.mark.parametrize("header", ("", "x,y\n"))
def test_a_byte_order_mark_is_no_header(tmp_path, header):
    (tmp_path / "a.csv").write_text(header + "0.5,1\n2,3\n", encoding="utf-8-sig")
    assert read_items(tmp_path / "a.csv").items.tolist() == [[[0.5, 1.0], [2.0, 3.0]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", r"a\.csv, line 2 must have 2 numbers, got 1: '3'"),
        ("1,2\n\n3,nan\n", r"a\.csv, line 3, column 2 must be a number, got 'nan'"),
        ("1,1e999\n", r"a\.csv, line 1, column 2 must be a number, got '1e999'"),
        ("1,2\n-1e39,4\n", r"a\.csv, line 2, column 1 must be a number that float32 can hold, got '-1e39'"),
        ('1,2\n"3,4\n', r"a\.csv is not a CSV file: unexpected end of data"),
        ("x,y\n1,2\n3,b\n", r"a\.csv, line 3, column 2 must be a number, got 'b'"),
        ("1,2\n1_000,4\n", r"a\.csv, line 2, column 1 must be a number, got '1_000'"),
        ("1,\n3,4\n", r"a\.csv, line 1, column 2 must be a number, got ''"),
        ("x,2\n3,4\n", r"a\.csv, line 1, column 1 must be a number, got 'x'"),
        ("x,y\n", r"a\.csv must have a line of numbers per item, it has none"),
        # A first line that can be meant as numbers is none of names: its row would be lost.
        ("O.1,l.2\n3,4\n", r"a\.csv, line 1, column 1 must be a number, got 'O.1'"),
        ("1.2.3,4.5.6\n3,4\n", r"a\.csv, line 1, column 1 must be a number, got '1.2.3'"),
        ("NA,null\n3,4\n", r"a\.csv, line 1, column 1 must be a number, got 'NA'"),
        ("?,-\n3,4\n", r"a\.csv, line 1, column 1 must be a number, got '\?'"),
        ('"1,5","2,5"\n3,4\n', r"a\.csv, line 1, column 1 must be a number, got '1,5'"),
        ("1;2\n3;4\n", r"a\.csv, line 1, column 1 must be a number, got '1;2'"),
        ("x,y,z\n1,2\n", r"a\.csv, line 2 must have 3 numbers, got 2: '1,2'"),
        ("1,2\n,\n3,4\n", r"a\.csv, line 2 must have a value, got empty cells only; delete it"),
        ("1,2\n3,\ufeff4\n", r"a\.csv, line 2, column 3 must be text in UTF-8, got a byte order mark inside"),
    ],
)
def test_wrong_csv(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_items(tmp_path / "a.csv")


def test_lines_of_empty_cells_at_the_end_are_a_spreadsheets(tmp_path):
    (tmp_path / "a.csv").write_text("x1,max speed\n1,2\n\n3,4\n,\n,\n")
    assert read_items(tmp_path / "a.csv").items.tolist() == [[[1.0, 2.0], [3.0, 4.0]]]


def test_tsplib(tmp_path):
    lines = ["NAME : tiny", "TYPE : TSP", "DIMENSION : 3", "EDGE_WEIGHT_TYPE : EUC_2D", "NODE_COORD_SECTION",
             "1 10 20", "2 30 20", "3 10 30", "EOF"]  # fmt: skip
    (tmp_path / "a.tsp").write_text("\n".join(lines) + "\n")
    torch.testing.assert_close(
        read_items(tmp_path / "a.tsp").items, torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 0.5]]])
    )


def test_folder_of_images(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels[0]).save(tmp_path / "b.png")
    Image.fromarray(pixels[1]).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("not an image")
    read = read_items(tmp_path)
    assert read.names == ["a.png", "b.png"] and read.items.shape == (1, 2, 3, 5, 4)
    assert np.array_equal(read.items[0].permute(0, 2, 3, 1).numpy(), pixels[::-1])
    assert read_items(tmp_path, channels=1).items.shape == (1, 2, 1, 5, 4)
    Image.fromarray(pixels[0, :3]).save(tmp_path / "c.png")
    with pytest.raises(ValueError, match=r"images must have one size, a\.png is 3x5x4 and c\.png is 3x3x4"):
        read_items(tmp_path)


def test_what_cannot_be_read_is_told(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"a\.npz is missing"):
        read_items(tmp_path / "a.npz")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(
        ValueError, match=r"items must be a folder of images or a file ending in \.npz, \.csv, \.tsp, got"
    ):
        read_items(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="has no images"):
        read_items(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'images are read with Pillow: pip install "softrank_ext\[vision\]"'):
        read_items(tmp_path)


@pytest.fixture
def samples() -> Samples:
    order = torch.tensor([[[1, 3, 2, 0], [0, 2, 3, 1]], [[2, 0, 1, 3], [2, 1, 0, 3]]])
    ranks = order.argsort(-1)
    log_prob = torch.tensor([[-1.0, -2.5], [-3.0, -4.0]])
    one = torch.ones(2, 2)
    return Samples(order, ranks, ranks / 3, log_prob, margin=one, passes=one.long(), accepted=one)


def test_orders_are_written_by_ending(tmp_path, samples):
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    source = ItemFile(torch.zeros(2, 4, 1), mask, None)
    write_orders(tmp_path / "a.csv", samples, source)
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["instance", "sample", "log_prob", "place_0", "place_1", "place_2", "place_3"]
    assert rows[2] == ["0", "1", "-2.500000", "0", "2", "3", "1"]
    assert rows[3] == ["1", "0", "-3.000000", "2", "0", "1"]
    write_orders(tmp_path / "a.json", samples, source)
    read = json.loads((tmp_path / "a.json").read_text())
    assert read[0] == {"instance": 0, "sample": 0, "log_prob": -1.0, "order": [1, 3, 2, 0]}
    assert read[3]["order"] == [2, 1, 0]
    write_orders(tmp_path / "a.npz", samples, source)
    with np.load(tmp_path / "a.npz") as arrays:
        assert np.array_equal(arrays["order"], samples.order.numpy())
        assert set(arrays) == {"order", "ranks", "soft_ranks", "log_prob"}


def test_named_items_are_written_by_name(tmp_path, samples):
    write_orders(tmp_path / "a.json", samples[:1], ItemFile(torch.zeros(1, 4, 1), None, ["a", "b", "c", "d"]))
    assert json.loads((tmp_path / "a.json").read_text())[0]["order"] == ["b", "d", "c", "a"]


def test_where_orders_cannot_go_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"orders are written to a file ending in \.csv, \.json, \.npz, got .*a\.txt"):
        item_files.check_writable(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError, match="no is not a folder: make it first"):
        item_files.check_writable(tmp_path / "no" / "a.csv")


def test_headers_of_arrays_are_not_believed(tmp_path):
    path = tmp_path / "a.npz"
    for shape in ((10**12,), (2, 10**15), (3,)):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("items.npy", header.getvalue() + bytes(16))
        with pytest.raises(ValueError, match=r"items.npy must have the \d+ bytes of its header, got 16"):
            read_items(path)
    for wrong in ({"items": b"\x93NUMPX\x01\x00"}, {"items": b""}, {"items": b"\x93NUMPY\x01\x00\x04\x00{1:2"}):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("items.npy", wrong["items"])
        with pytest.raises(ValueError, match=r"a\.npz is damaged or no \.npz file: "):
            read_items(path)
    path.write_bytes(b"no zip file")
    with pytest.raises(ValueError, match=r"is damaged or no \.npz file"):
        read_items(path)
    np.savez(path, items=np.asfortranarray(np.arange(6.0).reshape(1, 2, 3)), mask=np.ones((1, 2), bool))
    items, mask, _ = read_items(path)
    assert items.tolist() == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]] and mask.tolist() == [[True, True]]


def test_arrays_beyond_float32_are_refused(tmp_path):
    items = np.ones((1, 3, 2))
    items[0, 1, 1] = 1e300
    np.savez(tmp_path / "a.npz", items=items)
    with pytest.raises(ValueError, match=r"items must be numbers that float32 can hold, got 1e\+300 at \(0, 1, 1\)$"):
        read_items(tmp_path / "a.npz")


def test_only_what_is_asked_for_is_unpacked(tmp_path):
    """Other arrays may be of any size, so that a small file cannot fill the memory."""
    path = tmp_path / "a.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("other.npy", header.getvalue())
        items = io.BytesIO()
        np.save(items, np.ones((1, 2, 1), ">f8"))
        archive.writestr("items.npy", items.getvalue())
    assert read_items(path).items.tolist() == [[[1.0], [1.0]]]


def test_encrypted_and_double_arrays_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, items=np.ones((1, 2, 1)))
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.find(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.npz is damaged or no \.npz file: .* is encrypted"):
        read_items(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("items.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("items.npy", b"")
    with pytest.raises(ValueError, match=r"a\.npz is damaged or no \.npz file: items\.npy is there twice"):
        read_items(path)


@pytest.mark.parametrize("ending", (".csv", ".npz"))
def test_a_write_that_breaks_off_leaves_the_file_as_it_was(tmp_path, samples, monkeypatch, ending):
    path = tmp_path / f"orders{ending}"
    path.write_text("before")
    monkeypatch.setattr(item_files, "_written", lambda _: 1 / 0)  # in the first row, behind the header
    monkeypatch.setattr(np, "savez", lambda path, **_: path.write_text("half") / 0)
    with pytest.raises((ZeroDivisionError, TypeError)):
        write_orders(path, samples, ItemFile(torch.zeros(2, 3, 2), None, None))
    assert path.read_text() == "before" and [left.name for left in tmp_path.iterdir()] == [path.name]
