"""`softrank generate`."""

from pathlib import Path

from softrank_ext.cli.main import main
from softrank_ext.tasks import tsp


def test_options_are_handed_over(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(tsp, "generate", lambda *words, **options: calls.append((words, options)) or words[0])
    assert main(["generate", "tsp", "a.txt", "--count", "7", "--num-nodes", "5", "--seed", "2"]) == 0
    assert calls == [((Path("a.txt"), 7, 5), {"seed": 2, "rounds": None, "progress": False})]
    assert capsys.readouterr().out == "a.txt\n"
