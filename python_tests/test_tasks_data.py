"""Reading MNIST and CIFAR-10 from disk; nothing is downloaded unasked."""

import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

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
    with pytest.raises(ValueError, match="must hold arrays only, this one asks for posix"):
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


def test_download_without_torchvision_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match="downloading needs torchvision: pip install torchvision"):
        data.download("mnist", tmp_path)


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
