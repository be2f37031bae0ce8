"""Reading MNIST and CIFAR-10 from disk; nothing is downloaded unasked."""

import gzip
import hashlib
import os
import pickle
import sys
import tarfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from synthetic_data import write_cifar10, write_mnist

from softrank_ext.tasks import data

REAL = os.environ.get("SOFTRANK_DATA", "")


def test_reads_packed_and_unpacked_mnist(tmp_path):
    write_mnist(tmp_path)
    images, labels = data.mnist(True, tmp_path)
    assert images.shape == (40, 28, 28) and images.dtype == torch.uint8 and labels.dtype == torch.int64
    assert images[7, 3, 5] == 8 and images[7, 0, 0] == 255 and labels[17] == 7
    test_images, _ = data.mnist(False, str(tmp_path))
    assert test_images.shape == (20, 28, 28) and test_images[0, 1, 1] == 101


def test_reads_cifar10(tmp_path):
    write_cifar10(tmp_path)
    assert data.cifar10(True, tmp_path).shape == (20, 3, 32, 32)
    images = data.cifar10(False, tmp_path)
    assert images.shape == (4, 3, 32, 32) and images.dtype == torch.uint8 and images[0].unique().tolist() == [77]


def test_folder_comes_from_argument_then_variable_then_home(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTRANK_DATA", str(tmp_path))
    assert data.root_of("elsewhere") == Path("elsewhere")
    assert data.root_of() == tmp_path
    monkeypatch.delenv("SOFTRANK_DATA")
    assert data.root_of() == Path.home() / ".cache" / "softrank_ext"


def test_missing_data_says_which_command_gets_it(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"MNIST is not in .*: get it with `python -m softrank_ext download mnist`"
    ):
        data.mnist(True, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10 is not in .* download cifar10`, or set SOFTRANK_DATA"):
        data.cifar10(False, tmp_path)


def test_broken_files_are_refused(tmp_path):
    write_mnist(tmp_path)
    raw = tmp_path / "MNIST" / "raw"
    path = raw / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is truncated or not an idx file of bytes with 3 dimensions"):
        data.mnist(False, tmp_path)
    path.write_bytes(bytes((0, 0, 8, 3)) + bytes(12))
    with pytest.raises(ValueError, match=r"must be images \(count, 28, 28\) with as many labels, got \(0, 0, 0\)"):
        data.mnist(False, tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "test_batch").write_bytes(pickle.dumps(os.system))
    with pytest.raises(ValueError, match=r"must hold arrays only, it asks for 'posix\.system'"):
        data.cifar10(False, tmp_path)


def test_download_asks_torchvision_for_the_folder(monkeypatch, tmp_path):
    calls = []
    datasets = SimpleNamespace(
        MNIST=lambda root, download: calls.append(("mnist", root, download)),
        CIFAR10=lambda root, download: calls.append(("cifar10", root, download)),
    )
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=datasets))
    assert data.download("mnist", tmp_path / "new") == tmp_path / "new"
    data.download("cifar10", tmp_path)
    assert calls == [("mnist", str(tmp_path / "new"), True), ("cifar10", str(tmp_path), True)]
    with pytest.raises(ValueError, match="name must be one of mnist, cifar10, got 'imagenet'"):
        data.download("imagenet", tmp_path)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves the folder `served` on this machine; `server(name)` is a file's address, `server.asked` what was asked."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (tmp_path / "served").mkdir()
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "served"))

        def do_GET(self):
            asked.append(self.path.removeprefix("/"))
            super().do_GET()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield SimpleNamespace(
            url=f"http://127.0.0.1:{http.server_address[1]}/", folder=tmp_path / "served", asked=asked
        )
        http.shutdown()
        thread.join()


def md5_of(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_download_without_torchvision(server, tmp_path, monkeypatch):
    """MNIST as four files, CIFAR-10 as an archive of which only the known files are taken."""
    write_mnist(tmp_path / "made")
    sources = []
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            name = f"{part}-{kind}-ubyte"
            made, served = tmp_path / "made" / "MNIST" / "raw" / name, server.folder / f"{name}.gz"
            packed = made.with_name(f"{name}.gz")
            served.write_bytes(packed.read_bytes() if packed.exists() else gzip.compress(made.read_bytes()))
            sources.append(data.Source(f"MNIST/raw/{name}.gz", (f"{server.url}{name}.gz",), md5_of(served)))
    write_cifar10(tmp_path / "made")
    (tmp_path / "made" / "cifar-10-batches-py" / "readme.html").write_text("not asked for")
    archive = server.folder / "cifar.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    names = tuple(f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"))
    cifar = data.Source("cifar.tar.gz", (f"{server.url}cifar.tar.gz",), md5_of(archive), names)
    monkeypatch.setattr(data, "SOURCES", {"mnist": tuple(sources), "cifar10": (cifar,)})

    root = tmp_path / "new" / "root"
    assert data.download("mnist", root) == root
    assert torch.equal(data.mnist(True, root)[0], data.mnist(True, tmp_path / "made")[0])
    assert torch.equal(data.mnist(False, root)[1], data.mnist(False, tmp_path / "made")[1])
    data.download("cifar10", root)
    assert torch.equal(data.cifar10(True, root), data.cifar10(True, tmp_path / "made"))
    assert not (root / "cifar-10-batches-py" / "readme.html").exists()
    assert sorted(server.asked) == sorted([f"{source.path.split('/')[-1]}" for source in sources] + ["cifar.tar.gz"])
    data.download("mnist", root)  # all is there
    data.download("cifar10", root)
    assert len(server.asked) == 5
    assert list(root.rglob("*.part")) == []


def test_downloads_try_mirrors_and_check_sums(server, tmp_path):
    (server.folder / "right").write_bytes(b"right")
    (server.folder / "wrong").write_bytes(b"wrong")
    right = md5_of(server.folder / "right")
    urls = tuple(server.url + name for name in ("missing", "wrong", "right"))
    data.fetch([data.Source("a/b", urls, right)], tmp_path)
    assert (tmp_path / "a" / "b").read_bytes() == b"right" and server.asked == ["missing", "wrong", "right"]
    (tmp_path / "a" / "b").write_bytes(b"damaged")
    data.fetch([data.Source("a/b", urls[2:], right)], tmp_path)
    assert (tmp_path / "a" / "b").read_bytes() == b"right"
    with pytest.raises(OSError, match=rf"cannot download c; put it at .*/c by hand\. Tried {server.url}missing: HTTP "
                       rf"Error 404: .*; {server.url}wrong: its MD5 sum must be {right}, got "):  # fmt: skip
        data.fetch([data.Source("c", urls[:2], right)], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == []


@pytest.mark.skipif(not REAL, reason="needs SOFTRANK_DATA, a folder with MNIST and CIFAR-10")
def test_known_sums_are_those_of_the_real_files():
    for source in data.SOURCES["mnist"]:
        path = Path(REAL) / source.path
        assert not path.exists() or md5_of(path) == source.md5
    (cifar,) = data.SOURCES["cifar10"]
    assert all((Path(REAL) / name).exists() for name in cifar.unpacked)


def test_cuda_torchvision_beside_cpu_torch(monkeypatch, tmp_path):
    """A package that fails as the CUDA build does until the operator's schema is there."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import torch, types\n"
        "from torchvision import part\n"
        "torch.library.register_fake('torchvision::nms')(lambda dets, scores, iou_threshold: dets)\n"
        "datasets = types.SimpleNamespace(MNIST=lambda root, download: None)\n"
    )
    (package / "part.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    assert data.download("mnist", tmp_path) == tmp_path
    for name in ("torchvision", "torchvision.part"):
        sys.modules.pop(name)
    data._STAND_INS.clear()


@pytest.mark.skipif(not REAL, reason="needs SOFTRANK_DATA, a folder with MNIST and CIFAR-10")
def test_real_data():
    images, labels = data.mnist(False)
    assert labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    images, labels = data.mnist(True)
    assert len(images) == 60_000 and images.double().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
    means = data.cifar10(True).double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=1e-4, rtol=0)


class Crafted:
    """Pickles as a call."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def test_crafted_arrays_are_refused(tmp_path):
    """A dtype with an item size of its own made numpy read past the bytes that were there."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rows = np.zeros((2, 3072), np.uint8)
    for content in (
        {"data": rows.astype(np.float64)},
        {"data": np.zeros((2, 3072), np.dtype([("a", "u1")]))},
        {"data": np.asfortranarray(rows)},
        {"data": rows[:, :100]},
        {"data": [[1, 2]]},
        {"data": Crafted(np.dtype, "V1000000")},
        {"data": Crafted(np.ndarray, (2, 3072), "u1")},
        {"labels": []},
        [1],
    ):
        for protocol in (2, 4, 5):
            (folder / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol))
            with pytest.raises(ValueError, match="test_batch must"):
                data.cifar10(False, tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps({"data": rows}, protocol=4)[:-40])
    with pytest.raises(ValueError, match="test_batch must be a CIFAR-10 batch"):
        data.cifar10(False, tmp_path)
    for protocol in (4, 5):
        data._cifar10.cache_clear()
        (folder / "test_batch").write_bytes(pickle.dumps({"data": rows}, protocol=protocol))
        assert data.cifar10(False, tmp_path).shape == (2, 3, 32, 32)


def test_packed_files_are_not_unpacked_beyond_their_header(tmp_path):
    write_mnist(tmp_path)
    raw = tmp_path / "MNIST" / "raw"
    for path in raw.iterdir():
        path.unlink()
    head = bytes((0, 0, 8, 3)) + (2).to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
    (raw / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + bytes(10**7)))
    with pytest.raises(ValueError, match="is truncated or not an idx file"):
        data.mnist(False, tmp_path)
    (raw / "t10k-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="t10k-images-idx3-ubyte cannot be read"):
        data.mnist(False, tmp_path)
