"""Ballots: the files' layouts by hand, partial ballots, the distribution that batches are drawn from."""

import pytest
import torch

from softrank_ext import SoftRankConfig, SoftRankModel
from softrank_ext.model import DataFacts
from softrank_ext.permutations import check_order
from softrank_ext.tasks.preferences import Preferences, read_ballots

SOC = """# FILE NAME: 00001-00000001.soc
# DATA TYPE: soc
# NUMBER ALTERNATIVES: 3
# ALTERNATIVE NAME 1: Apple: red
# ALTERNATIVE NAME 2: Pear
# ALTERNATIVE NAME 3: Plum
# NUMBER VOTERS: 7
# NUMBER UNIQUE ORDERS: 2
5: 2,3,1
2: 1, 3, 2
"""
OLD_SOI = """3
1,Apple, red
2,Pear
3,Plum
7,7,2
5,2
2,1,3
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_reads_complete_orders(write):
    ballots = read_ballots(write("a.soc", SOC))
    assert ballots.names == ("Apple: red", "Pear", "Plum")
    assert ballots.order.tolist() == [[1, 2, 0], [0, 2, 1]]
    assert ballots.known.tolist() == [3, 3] and ballots.counts.tolist() == [5, 2]


def test_names_are_sorted_by_their_number(write):
    names = "".join(f"# ALTERNATIVE NAME {number}: item {number}\n" for number in (10, 2, 1, 3, 4, 5, 6, 7, 8, 9))
    ballots = read_ballots(write("a.soi", f"{names}1: 10,2\n"))
    assert (
        ballots.names[1] == "item 2" and ballots.names[9] == "item 10" and ballots.order[0, :3].tolist() == [9, 1, -1]
    )


def test_a_byte_order_mark_invents_no_candidate(tmp_path):
    for name, text in (("a.soc", SOC), ("a.csv", "ann,bob\nbob,ann\nann,bob\n")):
        (tmp_path / name).write_text(text)
        plain = read_ballots(tmp_path / name)
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        marked = read_ballots(tmp_path / name)
        assert marked.names == plain.names and torch.equal(marked.order, plain.order)


def test_names_of_the_older_layout_go_by_their_number(write):
    swapped = OLD_SOI.replace("2,Pear\n3,Plum", "3,Plum\n2,Pear")
    assert swapped != OLD_SOI and read_ballots(write("a.soi", swapped)).names == ("Apple, red", "Pear", "Plum")


def test_reads_incomplete_orders_of_the_older_layout(write):
    ballots = read_ballots(write("a.soi", OLD_SOI))
    assert ballots.names == ("Apple, red", "Pear", "Plum")
    assert ballots.order.tolist() == [[1, -1, -1], [0, 2, -1]]
    assert ballots.known.tolist() == [1, 2] and ballots.counts.tolist() == [5, 2]


@pytest.mark.parametrize(
    ("text", "counts"),
    [("Pear,Plum,Apple\nApple,,\n\nPlum\n", [1, 1, 1]), ("count,\n4,Pear, Plum,Apple\n2,Apple\n1,Plum\n", [4, 2, 1])],
)
def test_reads_csv(write, text, counts):
    ballots = read_ballots(write("a.csv", text))
    assert ballots.names == ("Pear", "Plum", "Apple") and ballots.counts.tolist() == counts
    assert ballots.order.tolist() == [[0, 1, 2], [2, -1, -1], [1, -1, -1]]


def test_batches_are_drawn_by_voters(write):
    task = Preferences(write("a.soc", SOC), test_share=0)
    batch = task.training_batch(0, 0, 700)
    assert batch.items.tolist() == [[0, 1, 2]] * 700 and batch.known.tolist() == [3] * 700
    orders, counts = batch.order.unique(dim=0, return_counts=True)
    assert orders.tolist() == [[0, 2, 1], [1, 2, 0]] and counts.tolist() == [200, 500]


def test_partial_ballots_keep_their_prefix_and_complete_it_at_random(write):
    task = Preferences(write("a.soi", "4\n1,a\n2,b\n3,c\n4,d\n9,9,2\n8,3\n1,2,4\n"), test_share=0)
    batch = task.training_batch(0, 0, 9 * 60)
    check_order(batch.order)
    short = batch.order[batch.known == 1]
    assert len(short) == 480 and (short[:, 0] == 2).all()
    counts = short.unique(dim=0, return_counts=True)[1]
    assert len(counts) == 6 and counts.min() > 50
    longer = batch.order[batch.known == 2]
    assert len(longer) == 60 and {tuple(order) for order in longer.tolist()} == {(1, 3, 0, 2), (1, 3, 2, 0)}


def test_held_out_voters_are_apart(write):
    lines = "\n".join(f"{name},x,y" for name in range(50))
    task = Preferences(write("a.csv", lines), test_share=0.2)
    trained = {order[0] for order in task.training_batch(0, 0, 40).order.tolist()}
    tested = {order[0] for batch in task.test_batches(10, 4) for order in batch.order.tolist()}
    assert len(trained) == 40 and len(tested) == 10 and not trained & tested


def test_batches_are_functions_of_seed_and_step(write):
    file = write("a.soi", OLD_SOI)
    task = Preferences(file, test_share=0)
    batch, again = task.training_batch(3, 1, 7), Preferences(file, test_share=0).training_batch(3, 1, 7)
    assert torch.equal(batch.order, again.order) and torch.equal(batch.known, again.known)
    assert not torch.equal(batch.order, task.training_batch(4, 1, 7).order)
    (whole,), parts = task.test_batches(7, 7), list(task.test_batches(7, 3))
    assert torch.equal(whole.order, torch.cat([part.order for part in parts]))


def test_score_looks_at_what_the_ballot_gives(write):
    task = Preferences(write("a.soi", OLD_SOI), test_share=0)
    (batch,) = task.test_batches(7, 7)
    order = torch.tensor([[1, 0, 2]]).expand(7, 3)
    scores = task.score(batch, order)
    is_pear = batch.known == 1  # "Pear first", which the order has; "Apple, Plum", of which it has nothing in place
    assert is_pear.sum() == 5
    assert torch.equal(scores["accuracy"], is_pear.double()) and torch.equal(scores["correctness"], is_pear.double())
    # Apple before Plum is right, Apple and Plum before Pear are not: 1 - 2 * 2 / 3.
    torch.testing.assert_close(
        scores["kendall_tau_of_ranks"], torch.where(is_pear, 1.0, -1 / 3).double(), atol=1e-6, rtol=0
    )


def test_models_read_the_items(write):
    task = Preferences(write("a.soc", SOC))
    model = SoftRankModel(SoftRankConfig(d_model=16, heads=2, embedder=task.embedder()))
    assert task.max_items() == 3 and model.embed(task.training_batch(0, 0, 2).items).shape == (2, 3, 16)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toc", "", r"a file of ballots must end in .soc, .soi, .csv, got a.toc"),
        ("a.soc", SOC.replace("2,3,1", "2,3"), "line [0-9]+: a .soc ballot must name all 3 items, this one names 2"),
        ("a.soi", SOC.replace("2,3,1", "2,2"), "a ballot names an item twice: Pear, Pear"),
        ("a.soi", SOC.replace("2,3,1", "{2,3},1"), "has ties; .soc and .soi files hold strict orders"),
        ("a.soi", SOC.replace("2,3,1", "2,4"), r"line \d+: items are numbered 1 to 3, the ballot has \[2, 4\]"),
        ("a.soi", SOC.replace("5: 2", "0: 2"), "a ballot's count must be at least 1, got 0"),
        ("a.soi", SOC.replace("5: 2", "5_0: 2"), "line [0-9]+ must be a count and item numbers, got '5_0: 2,3,1'"),
        ("a.soi", SOC.replace("2,3,1", "two"), "line [0-9]+ must be a count and item numbers, got '5: two'"),
        ("a.soi", "hello", "is not a PrefLib file of strict orders"),
        ("a.csv", "", "has no ballots"),
        ("a.csv", "count\nmany,a,b", "line 2, column 1 must be a count, got 'many'"),
        ("a.csv", "count,a\n\n3,\n", "line 3 must name at least one item, got a count alone"),
        (
            "a.soi",
            SOC.replace("ALTERNATIVES: 3", "ALTERNATIVES: 999999999"),
            "NUMBER ALTERNATIVES must be that of the names, 3, got 999999999",
        ),
        ("a.soi", SOC.replace("NAME 2", "NAME 3"), r"names must be numbered 1 to 3, each once, got 1, 3, 3"),
        ("a.soi", SOC.replace("NAME 3", "NAME 4"), r"names must be numbered 1 to 3, each once, got 1, 2, 4"),
        ("a.soi", OLD_SOI.replace("3,Plum", "2,Plum"), r"names must be numbered 1 to 3, each once, got 1, 2, 2"),
        # A file that lost its end, or the line of totals in whose place a ballot would be taken.
        ("a.soi", OLD_SOI.rsplit("\n", 2)[0], "NUMBER VOTERS is 7, the ballots have 5"),
        ("a.soi", OLD_SOI.replace("7,7,2\n", ""), r"line 5 must be the totals, three numbers, got '5,2'"),
        ("a.soi", SOC.replace("VOTERS: 7", "VOTERS: 9"), "NUMBER VOTERS is 9, the ballots have 7"),
        ("a.soi", SOC.replace("ORDERS: 2", "ORDERS: 3"), "NUMBER UNIQUE ORDERS is 3, the ballots have 2"),
        ("a.csv", "Count,first\nmany,a,b", "line 2, column 1 must be a count, got 'many'"),
        ("a.csv", "count\n" + "1" * 5000 + ",a,b", "line 2, column 1 must be a count, got '1{40}'"),
        ("a.csv", "a,b\nb,\u200ba", r"line 2, column 2 must be a name that can be told from 'a', got '\\u200ba'"),
        ("a.csv", "\u00e9,b\nb,e\u0301", r"line 2, column 2 must be a name that can be told from"),
        ("a.csv", "count\n2,a,b\n1,b,\u200ba", r"line 3, column 3 must be a name that can be told from 'a'"),
        ("a.csv", "a,b\n\ufeffb,a", "line 2, column 1 must be text in UTF-8, got a byte order mark inside"),
        ("a.csv", "a;b\nb;a", "line 1, column 1 must be a name, with commas between names, got 'a;b'"),
        ("a.csv", "# FILE NAME: x\n1: 1,2", "is a PrefLib file: name it .soc, or .soi"),
        ("a.csv", "a,,b", "line 1, column 2: empty cells may stand at the end of a ballot only"),
    ],
)
def test_broken_files_are_refused(write, name, text, message):
    with pytest.raises(ValueError, match=message):
        read_ballots(write(name, text))


def test_other_errors(write, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.soc is missing: PrefLib files are at preflib.org"):
        Preferences(str(tmp_path / "none.soc")).max_items()
    with pytest.raises(ValueError, match="test_share must be at least 0 and below 1, got 1"):
        Preferences("a.soc", test_share=1)
    with pytest.raises(ValueError, match=r"has 1 voters, too few to hold out a share of 0\.2: use 0"):
        Preferences(write("one.csv", "a,b\n")).training_batch(0, 0, 1)


def test_a_file_of_the_same_name_elsewhere_is_another(tmp_path, monkeypatch):
    for folder, ballots in (("one", "1: 1,2,3\n"), ("two", "1: 4,3,2,1\n")):
        (tmp_path / folder).mkdir()
        items = sorted(ballots.removeprefix("1: ").strip().split(","))
        names = "".join(f"# ALTERNATIVE NAME {item}: {item}\n" for item in items)
        (tmp_path / folder / "ballots.soc").write_text(f"# NUMBER ALTERNATIVES: {len(items)}\n{names}{ballots}")
        monkeypatch.chdir(tmp_path / folder)
        assert Preferences("ballots.soc", test_share=0).max_items() == len(items)


def test_data_facts_are_the_number_of_items(tmp_path):
    path = tmp_path / "fruit.soc"
    path.write_text(SOC)
    assert Preferences(str(path)).data_facts() == DataFacts(num_items=(3, 3))


def test_counts_are_not_believed(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("count,first,second\n1000000000000,a,b\n")
    with pytest.raises(ValueError, match="must have at most 100000000 voters, its counts sum to 1000000000000"):
        read_ballots(path)
    path.write_text("a," + "x" * 200_000 + "\n")
    with pytest.raises(ValueError, match="is not a CSV file: field larger than field limit"):
        read_ballots(path)
    path = tmp_path / "a.soc"
    path.write_text("1000000000\n1,a\n2,b\n2,2,1\n2,1,2\n")
    with pytest.raises(ValueError, match="the first line promises 1000000000 items, the file has 5 lines"):
        read_ballots(path)
