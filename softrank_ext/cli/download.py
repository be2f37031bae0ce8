"""`softrank download mnist` and `softrank download cifar10`."""

from collections.abc import Callable


def download_command(name: str) -> Callable[..., None]:
    """The command that downloads the data set of that name."""

    def command(root: str | None = None) -> None:
        from softrank_ext.tasks.data import download

        print(download(name, root))

    command.__doc__ = f"""Download {name} and check it; torchvision is used if it is installed.

    Args:
        root: Folder for it; by default SOFTRANK_DATA, else ~/.cache/softrank_ext.
    """
    return command
