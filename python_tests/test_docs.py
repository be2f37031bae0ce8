"""The code of README.md and docs/ runs, page by page, and the commands and links on the pages exist."""

import ast
import contextlib
import importlib
import io
import re
import shlex
from functools import lru_cache
from pathlib import Path

import pytest

import softrank_ext
from softrank_ext.cli.main import COMMANDS
from softrank_ext.cli.main import main as softrank

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
MAIN_COMMAND = " && ".join(
    (
        "python3 -m venv .venv",
        '.venv/bin/pip install torch==2.13.0 -e ".[test,plots]"',
        ".venv/bin/softrank demo",
    )
)
TEST_COMMAND = (
    'python3 -m venv .venv-test && .venv-test/bin/pip install torch==2.13.0 ".[test]" && .venv-test/bin/pytest'
)
needs_clone = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="not in a clone: an sdist has no docs")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def with_python() -> list[str]:
    return [page for page in PAGES if code_blocks(page, "python")]


def shell_lines(page: str) -> list[str]:
    """Single commands of the page's shell blocks, and of the code in its text that starts with softrank."""
    blocks = "\n".join(code_blocks(page, "bash")).replace("\\\n", " ")
    inline = [code for code in re.findall(r"`(softrank [^`\n]+)`", text_of(page)) if "..." not in code]
    return [part.strip() for line in blocks.splitlines() for part in line.split("&&") if part.strip()] + inline


def softrank_words(line: str) -> list[str]:
    """The words after `softrank`, or after `-m softrank_ext`; none if the line runs something else."""
    words = shlex.split(line, comments=True)
    for index, word in enumerate(words):
        if Path(word).name == "softrank" or word == "softrank_ext":
            return words[index + 1 :]
    return []


@lru_cache
def help_of(*words: str) -> str:
    """What a command prints for --help."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        softrank([*words, "--help"])
    return printed.getvalue()


def options_of(words: list[str]) -> list[str]:
    return [word.split("=")[0] for word in words if re.match(r"--[a-z]", word)]


def unknown_options(words: list[str]) -> list[str]:
    """Options that the command's --help does not list; raises KeyError if there is no such command."""
    if words == ["--version"]:
        return []
    path, commands = [], COMMANDS
    while isinstance(commands, dict):
        word = words[len(path)] if len(words) > len(path) else "--"
        if path and (word.startswith("--") or word.isupper()):  # left open, or a placeholder: any will do
            word = next(iter(commands))
        commands = commands[word]
        path.append(word)
    method = words[words.index("--method") + 1] if "--method" in words else "NAME"
    path += [] if method.isupper() else ["--method", method]
    listed = set(re.findall(r"--[a-z][\w.-]*", help_of(*path)))
    return [option for option in options_of(words) if option not in listed | {"--help"}]


@needs_clone
def test_there_is_code_to_run():
    assert len(with_python()) >= 10
    assert all(f"docs/{name}.md" in PAGES for name in ("index", "start", "concepts", "results", "speed", "promises"))


@pytest.mark.parametrize("page", with_python())
def test_python_of_page_runs(page, tmp_path, monkeypatch, one_thread):
    """All blocks of a page, one after another, in one namespace."""
    monkeypatch.chdir(tmp_path)
    if "softrank_ext.show" in text_of(page):
        pytest.importorskip("matplotlib").use("agg")
    namespace = {"__name__": "page"}
    for block in code_blocks(page, "python"):
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("page", with_python())
def test_calls_fit_on_one_line(page):
    for block in code_blocks(page, "python"):
        calls = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
        assert all(call.lineno == call.end_lineno for call in calls)
        assert all(len(line) <= 120 for line in block.splitlines())


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])  # which has old ones
def test_commands_of_page_exist(page):
    for line in shell_lines(page):
        if words := softrank_words(line):
            assert unknown_options(words) == [], line
        elif script := re.match(r"python (bench/\S+\.py)(.*)", line):
            source = (ROOT / script[1]).read_text() if (ROOT / "bench").exists() else None
            for option in options_of(shlex.split(script[2], comments=True)) if source is not None else ():
                assert f'"{option}"' in source, line


def test_unknown_commands_and_options_are_noticed():
    assert unknown_options(["walk", "--process.noise-scale", "0.2"]) == []
    assert unknown_options(["walk", "--noise-scales", "0.2"]) == ["--noise-scales"]
    with pytest.raises(KeyError):
        unknown_options(["wander"])


def test_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 200


@pytest.mark.parametrize("command", [MAIN_COMMAND, TEST_COMMAND])
def test_command_is_a_block_of_its_own(command):
    assert command + "\n" in code_blocks("README.md", "bash")


def test_ci_runs_the_test_command_literally():
    ci = ROOT / ".ci" / "run"
    if not ci.exists():
        pytest.skip("not in a clone: an sdist has no .ci")
    assert TEST_COMMAND in [line.strip() for line in ci.read_text().splitlines()]


@needs_clone
@pytest.mark.parametrize("page", PAGES)
def test_links_point_at_files(page):
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)\)", text_of(page)):
        assert ((ROOT / page).parent / link).exists(), link


def entries_of(page: str) -> list[str]:
    """The pages that the tables of contents of a page list."""
    blocks = re.findall(r"^```{toctree}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]


@needs_clone
def test_every_page_is_in_a_table_of_contents():
    folders = {"docs/index.md": "docs/", "docs/api/index.md": "docs/api/"}
    listed = {f"{folder}{entry}.md" for page, folder in folders.items() for entry in entries_of(page)}
    pages = {page for page in PAGES if page.startswith("docs/")}
    assert pages - listed == {"docs/index.md"}
    assert listed - pages == {"docs/examples/README.md"}  # a link to the folder of examples


@needs_clone
def test_every_page_of_the_text_is_linked_from_the_index():
    linked = set(re.findall(r"\]\((?!https?:)([^)#\s]+)\)", text_of("docs/index.md")))
    own = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    written_elsewhere = {"contributing.md", "changelog.md", *(page for page in own if page.startswith("api/"))}
    assert own - linked - written_elsewhere == {"index.md"}


@needs_clone
def test_every_public_name_is_in_the_reference():
    """What `softrank_ext` and its rooms export is of a module, or exported by one, that the reference documents."""
    pages = [page for page in PAGES if page.startswith("docs/api/")]
    found = [one for page in pages for one in re.findall(r"automodule:: (\S+)(\n +:imported-members:)?", text_of(page))]
    names, imported = [name for name, _ in found], {name for name, option in found if option}
    single = {name for page in pages for name in re.findall(r"auto(?:function|data):: (?:\S+\.)?(\w+)", text_of(page))}
    assert len(names) == len(set(names))
    documented = [importlib.import_module(name) for name in names]
    rooms = [module for module in documented if hasattr(module, "__path__")]
    for owner in (softrank_ext, *rooms):
        for name in getattr(owner, "__all__", ()):
            value = getattr(owner, name)
            if callable(value) and value.__module__.startswith("softrank_ext"):
                is_exported = any(
                    getattr(module, name, None) is value
                    and (name in getattr(module, "__all__", ()) or module.__name__ in imported)
                    for module in documented
                )
                assert is_exported or value.__module__ in names or name in single, f"{owner.__name__}.{name}"
    folders = {path.name for path in (ROOT / "softrank_ext").iterdir() if (path / "__init__.py").exists()}
    described = {name.split(".")[1] for name in names}
    assert folders - described == {"cli"}
