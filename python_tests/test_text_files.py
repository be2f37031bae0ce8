"""Text from files: what is not text is an error with file, line and column."""

import pytest

from softrank_ext.text_files import parse_json, read_text


def test_a_byte_order_mark_at_the_beginning_is_left_out(tmp_path):
    for data in (b"\xef\xbb\xbfa,b\r\n", b"a,b\r\n"):
        (tmp_path / "a").write_bytes(data)
        assert read_text(tmp_path / "a") == "a,b\r\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("é\nxé".encode() + b"\xe9\n", r"a, line 2, byte 4 must be text in UTF-8, got 0xe9; save the file as UTF-8"),
        (b"\xef\xbb\xbfa\xff", r"a, line 1, byte 5 must be text in UTF-8, got 0xff"),
        ("a,b\n".encode("utf-16"), r"a, line 1, byte 1 must be text in UTF-8, got 0xff"),
        ("a,b\n".encode("utf-16-le"), r"a, line 1, column 2 must be text in UTF-8, got a NUL"),
        ("a\nb,\ufeffc\n".encode(), r"a, line 2, column 3 must be text in UTF-8, got a byte order mark inside"),
    ],
)
def test_what_is_not_text_is_told_with_its_place(tmp_path, data, message):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_text(tmp_path / "a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', r"f is not valid JSON: 'c' is there twice in one object"),
        ("[NaN]", r"f is not valid JSON: NaN is no JSON"),
        ("[" * 100_000, r"f is not valid JSON: maximum recursion depth"),
        ("[1", r"f is not valid JSON: Expecting ',' delimiter: line 1 column 3"),
    ],
)
def test_json_that_says_two_things_or_none(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json("f", text)
    assert parse_json("f", '{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
