"""Tables in and out."""

import builtins
import io

import numpy as np
import pandas
import polars
import pytest
import torch

from softrank_ext import Ranker, plan_tour, schedule, tables
from softrank_ext.tables import columns_of, frame_of, is_number_column, numbers_in, texts_in, write_csv

PLAIN = {"price": [3.5, 2.0], "city": ["Bonn", "Rom"], "grade": [2, 0]}


def check_plain(columns):
    assert list(columns) == ["price", "city", "grade"]
    assert columns["price"].dtype == np.float64 and columns["price"].tolist() == [3.5, 2.0]
    assert columns["grade"].dtype == np.int64 and columns["grade"].tolist() == [2, 0]
    assert columns["city"].dtype == object and columns["city"].tolist() == ["Bonn", "Rom"]


@pytest.mark.parametrize(
    "table",
    [
        PLAIN,
        pandas.DataFrame(PLAIN),
        polars.DataFrame(PLAIN),
        np.array([(3.5, "Bonn", 2), (2.0, "Rom", 0)], dtype=[("price", "f8"), ("city", "U9"), ("grade", "i8")]),
    ],
    ids=["dict", "pandas", "polars", "structured"],
)
def test_every_kind_of_table_gives_the_same_columns(table):
    check_plain(columns_of(table))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_csv(tmp_path, delimiter, encoding):
    text = "\n".join(("price,city,grade", "3.5,Bonn,2", "", "2.0,Rom,0", "")).replace(",", delimiter)
    (tmp_path / "a.csv").write_text(text, encoding=encoding)
    check_plain(columns_of(tmp_path / "a.csv"))
    check_plain(columns_of(str(tmp_path / "a.csv")))


def read(tmp_path, text):
    (tmp_path / "table.csv").write_text(text)
    return columns_of(tmp_path / "table.csv")


def test_cells_of_csv(tmp_path):
    columns = read(tmp_path, 'a;b;c;d;"e;1"\n3,5;007;;x;"one ""two"""\n;12;NaN;;"line\nbreak"\n')
    np.testing.assert_array_equal(columns["a"], [3.5, np.nan])  # a decimal comma
    assert columns["b"].tolist() == ["007", "12"]  # a name in digits stays a name
    assert columns["c"].tolist() == [None, None]
    assert columns["d"].tolist() == ["x", None]
    assert columns["e;1"].tolist() == ['one "two"', "line\nbreak"]
    columns = read(tmp_path, "a,b,c,id\n1,NA,1e3,12345678901234567890\n-2,2,inf,1\n")
    assert columns["a"].tolist() == [1, -2] and columns["a"].dtype == np.int64
    np.testing.assert_array_equal(columns["b"], [np.nan, 2])
    np.testing.assert_array_equal(columns["c"], [1000, np.inf])
    assert columns["id"].tolist() == ["12345678901234567890", "1"]
    assert {name: len(column) for name, column in read(tmp_path, "a,b\n").items()} == {"a": 0, "b": 0}
    assert read(tmp_path, "name\nx\ny\n")["name"].tolist() == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty; its first line must name the columns"),
        ("a,b\n1,2\n\n3\n", "line 4 must have 2 cells, as the first has, got 1 cell$"),
        ("a,3.5\n1,2\n", "must begin with a line that names the columns, got '3.5' in column 2"),
        ("a,\n1,2\n", "must begin with a line that names the columns, got an empty cell in column 2"),
        ("a,b,a\n1,2,3\n", "different names, 'a' is there twice"),
        # A quote that is never closed would make one cell of all rows after it.
        ('a,b\n1,"2\n3,4\n5,6\n', r"table\.csv is not a CSV file: unexpected end of data"),
        ('a,b\n"1"x,2\n', r"table\.csv is not a CSV file: ',' expected after"),
    ],
)
def test_bad_csv(tmp_path, text, match):
    with pytest.raises(ValueError, match=match):
        read(tmp_path, text)


def test_files_that_are_no_csv(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"none\.csv is missing"):
        columns_of(tmp_path / "none.csv")
    with pytest.raises(FileNotFoundError, match="is a folder"):
        columns_of(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n", encoding="utf-16")
    with pytest.raises(ValueError, match=r"a\.csv, line 1, byte 1 must be text in UTF-8"):
        columns_of(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("a,b\n1," + "x" * 2**21)
    with pytest.raises(ValueError, match=r"b\.csv is not a CSV file: field larger"):
        columns_of(tmp_path / "b.csv")
    monkeypatch.setattr(tables, "MOST_FILE_BYTES", 100)
    with pytest.raises(ValueError, match="must have at most 100 bytes, got 2097158"):
        columns_of(tmp_path / "b.csv")


def test_arrays_with_names():
    columns = columns_of(np.array([[1.0, 2.0], [3.0, 4.0]]), ["a", "b"])
    assert {name: column.tolist() for name, column in columns.items()} == {"a": [1, 3], "b": [2, 4]}
    with pytest.raises(ValueError, match="names must be 2, one per column of the array, got 1"):
        columns_of(np.zeros((3, 2)), ["a"])
    with pytest.raises(ValueError, match="different names, 'a' is there twice"):
        columns_of(np.zeros((3, 2)), ["a", "a"])
    with pytest.raises(TypeError, match="names are for a 2-d array, got dict"):
        columns_of({"a": [1]}, ["a"])
    with pytest.raises(TypeError, match=r"a table must be .*, got a 2-d array without names"):
        columns_of(np.zeros((3, 2)))


def test_what_is_no_table():
    for wrong, came in ((None, "NoneType"), ([1, 2], "list"), (pandas.Series([1]), "Series")):
        with pytest.raises(TypeError, match=f"a table must be a pandas or polars DataFrame.*, got {came}$"):
            columns_of(wrong)
    with pytest.raises(TypeError, match=r"got LazyFrame; call collect\(\) first"):
        columns_of(polars.DataFrame(PLAIN).lazy())
    with pytest.raises(ValueError, match="the table has no columns"):
        columns_of({})
    with pytest.raises(ValueError, match=r"must have one length, got \{'a': 2, 'b': 1\}"):
        columns_of({"a": [1, 2], "b": [1]})
    with pytest.raises(TypeError, match="column 'a' must be a 1-d array or a list, got str"):
        columns_of({"a": "text"})
    with pytest.raises(ValueError, match=r"column 'a' must be 1-d, got an array of shape \(2, 2\)"):
        columns_of({"a": np.zeros((2, 2))})
    with pytest.raises(TypeError, match="column 'a' must have numbers, dates or texts, got complex128"):
        columns_of({"a": np.zeros(2, dtype=complex)})
    frame = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(ValueError, match="'a' is there twice"):
        columns_of(frame)


def test_missing_values():
    given = {"a": [1, None], "b": ["x", None], "c": [True, None], "d": [1.5, None]}
    frame = pandas.DataFrame(given).astype({"a": "Int64", "b": "category"})
    for table in (given, frame, polars.DataFrame(given)):
        columns = columns_of(table)
        np.testing.assert_array_equal(numbers_in(columns, "a", missing=True), [1, np.nan])
        np.testing.assert_array_equal(numbers_in(columns, "c", missing=True), [1, np.nan])
        np.testing.assert_array_equal(numbers_in(columns, "d", missing=True), [1.5, np.nan])
        assert columns["b"].tolist() == ["x", None]
        with pytest.raises(ValueError, match="column 'a' has no number in row 1; rows count from 0"):
            numbers_in(columns, "a")
    whole = columns_of(pandas.DataFrame({"a": pandas.array([1, 2], dtype="Int64")}))
    assert whole["a"].dtype == np.int64


def test_numbers_in():
    columns = columns_of(
        {
            "grade": ["1", "2.5", "abc"],
            "mixed": [1, "2", None],
            "endless": [1.0, -np.inf, 2.0],
            "lists": np.array([[1], [2, 3], None], dtype=object),
            "flags": [True, False, True],
            "tensor": torch.tensor([1, 2, 3]),
        }
    )
    with pytest.raises(ValueError, match="column 'grade' has text in row 2: 'abc'; rows count from 0"):
        numbers_in(columns, "grade")
    np.testing.assert_array_equal(numbers_in(columns, "mixed", missing=True), [1, 2, np.nan])
    with pytest.raises(ValueError, match="column 'endless' must have finite numbers, got -inf in row 1"):
        numbers_in(columns, "endless", missing=True)
    with pytest.raises(ValueError, match=r"column 'lists' has list in row 0: \[1\]"):
        numbers_in(columns, "lists")
    assert numbers_in(columns, "flags").tolist() == [1, 0, 1]
    assert numbers_in(columns, "tensor").dtype == np.float64
    with pytest.raises(ValueError, match=r"no column 'grades', it has 'grade', 'mixed'.*; did you mean 'grade'\?"):
        numbers_in(columns, "grades")


def test_dates_are_no_numbers():
    days = np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[D]")
    for table in ({"day": days}, pandas.DataFrame({"day": days}), polars.DataFrame({"day": days})):
        columns = columns_of(table)
        with pytest.raises(ValueError, match="column 'day' must have numbers, it has dates; count days or seconds"):
            numbers_in(columns, "day")
        assert all(text.startswith("2026-01-0") for text in texts_in(columns, "day"))
    with pytest.raises(ValueError, match="it has durations"):
        numbers_in({"day": days - days[0]}, "day")


def test_texts_in():
    columns = columns_of({"id": [3.0, np.nan, 2.5], "name": ["a", None, 7], "bad": [{"x": 1}, None, None]})
    assert texts_in(columns, "id").tolist() == ["3", None, "2.5"]
    assert texts_in(columns, "name").tolist() == ["a", None, "7"]
    with pytest.raises(ValueError, match=r"column 'bad' has dict in row 0: \{'x': 1\}"):
        texts_in(columns, "bad")


def test_is_number_column():
    assert is_number_column(np.array([1, 2])) and is_number_column(np.array([True]))
    assert is_number_column(np.array([1, None], dtype=object))
    assert is_number_column(np.array([1.5, "n/a"], dtype=object))
    assert not is_number_column(np.array([1, "a"], dtype=object))
    assert not is_number_column(np.array(["1", "n/a"], dtype=object))
    assert not is_number_column(np.array([None], dtype=object))
    assert not is_number_column(np.array(["2026-01-01"], dtype="datetime64[D]"))


def test_frame_of():
    columns = columns_of(PLAIN)
    frame = pandas.DataFrame(PLAIN, index=["x", "y"])
    assert frame_of(columns, like=frame).equals(frame)
    assert isinstance(frame_of(columns, like=polars.DataFrame(PLAIN)), polars.DataFrame)
    assert frame_of(columns, like=polars.DataFrame(PLAIN)).equals(polars.DataFrame(PLAIN))
    assert frame_of(columns).equals(pandas.DataFrame(PLAIN))
    mixed = frame_of({"a": np.array([1, "x", None], dtype=object)}, like=polars.DataFrame(PLAIN))
    assert mixed.shape == (3, 1)


def test_frames_need_pandas_or_polars(monkeypatch):
    real_import = builtins.__import__
    gone = {"pandas"}

    def without(name, *rest):
        if name.split(".")[0] in gone:
            raise ImportError(f"no {name}")
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert isinstance(frame_of({"a": np.array([1])}), polars.DataFrame)
    gone.add("polars")
    with pytest.raises(ImportError, match=r"pip install softrank_ext\[tables\]"):
        frame_of({"a": np.array([1])})
    check_plain(columns_of(PLAIN))


def test_write_csv(tmp_path):
    columns = {
        "a": np.array([1.5, np.nan]),
        "b": np.array(["x,1", None], dtype=object),
        "c": [1, 2],
        "d": np.array(["2026-01-01", "NaT"], dtype="datetime64[D]"),
    }
    write_csv(columns, tmp_path / "a.csv")
    stream = io.StringIO()
    write_csv(columns, stream)
    assert stream.getvalue() == (tmp_path / "a.csv").read_text() == 'a,b,c,d\n1.5,"x,1",1,2026-01-01\n,,2,\n'
    back = columns_of(tmp_path / "a.csv")
    np.testing.assert_array_equal(back["a"], columns["a"])
    assert back["b"].tolist() == ["x,1", None] and back["c"].tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"one length, got \[1, 2\]"):
        write_csv({"a": [1], "b": [1, 2]}, stream)


def test_lines_of_empty_cells(tmp_path):
    """At the end they are a spreadsheet's; amid others a row would be lost."""
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n\n3,\n,\n,\n")
    assert columns_of(path)["a"].tolist() == [1, 3]
    path.write_text("a,b\n1,2\n,\n3,4\n")
    with pytest.raises(ValueError, match=r"a\.csv, line 3 must have a value, got empty cells only; delete it"):
        columns_of(path)
    path.write_text('a\n1\n""\n3\n')
    np.testing.assert_array_equal(columns_of(path)["a"], [1, np.nan, 3])


def test_masked_cells_are_missing():
    masked = np.ma.array([[0, 1], [5, 2], [1, 1]], mask=[[False, False], [True, False], [False, False]])
    columns = columns_of(masked, ["x", "y"])
    assert np.isnan(columns["x"][1]) and columns["x"][0] == 0 and columns["y"].tolist() == [1, 2, 1]
    texts = np.ma.array(["a", "b"], mask=[False, True])
    assert columns_of({"t": texts, "n": masked[:2, 0]})["t"].tolist() == ["a", None]
    with pytest.raises(ValueError, match=r"places must be finite numbers, got \[nan, 2.0\] in row 1"):
        plan_tour(masked, metric="plane")
    with pytest.raises(ValueError, match="column 'machine 1' has no number in row 1"):
        schedule(masked)
    with pytest.raises(ValueError, match="column 'y' has no number in row 1"):
        Ranker().fit(np.arange(6.0).reshape(3, 2), masked[:, 0], [3])
