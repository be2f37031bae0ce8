"""`softrank download mnist` and `softrank download cifar10`."""

from collections.abc import Callable

from softrank_ext.cli.options import AsJson, tell


def download_command(name: str) -> Callable[..., None]:
    """The command that downloads the data set of that name."""

    def command(root: str | None = None, as_json: AsJson = False) -> None:
        from softrank_ext.tasks.data import download

        folder = str(download(name, root))
        tell(as_json, {"name": name, "folder": folder}, folder)

    command.__doc__ = f"""Download {name} and check it; torchvision is used if it is installed.

    Args:
        root: Folder for it; by default SOFTRANK_DATA, else ~/.cache/softrank_ext.
    """
    return command
