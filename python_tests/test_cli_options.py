"""Options that several commands share."""

import pytest

from softrank_ext import Beam, Bridge, Draw, Greedy, SoftRankModel, pretrained
from softrank_ext.cli.options import ProcessOptions, check_decode_options, decode_of, folder_to_load, value_of


def test_process_options_change_what_is_given():
    model = SoftRankModel.from_pretrained("tsp")
    assert ProcessOptions().process_of(model, None) is None
    assert ProcessOptions().process_of(model, model.process.sampling_steps) is None
    assert ProcessOptions(noise_scale=0.2, carry="reflected").process_of(model, 3) == Bridge(
        0.2, model.process.prior, "reflected", "clean", 3
    )


def test_ways_to_pick():
    assert decode_of("sample", Draw(0.5), Beam(3)) == Draw(0.5)
    assert decode_of("greedy", Draw(0.5), Beam(3)) == Greedy()
    assert decode_of("beam", Draw(0.5), Beam(3)) == Beam(3)
    check_decode_options(["sample", "beam"], Draw(0.5), Beam(3))
    with pytest.raises(ValueError, match=r"--draw.temperature is for --decode sample, got --decode greedy"):
        check_decode_options(["greedy"], Draw(0.5), Beam())
    with pytest.raises(ValueError, match=r"are for --decode beam, got --decode greedy sample"):
        check_decode_options(["greedy", "sample"], Draw(), Beam(3))


def test_words_and_folders(tmp_path):
    assert value_of("--method", ["a", "--method", "x", "--method=y"]) == "y"
    assert value_of("--method", ["a", "--method"]) is None
    assert folder_to_load("tsp") == pretrained.BUNDLED / "tsp"
    model = SoftRankModel.from_pretrained("preferences-dublin-north")
    model.save_pretrained(tmp_path / "last")
    assert folder_to_load(tmp_path) == tmp_path / "last"
    model.save_pretrained(tmp_path / "best")
    assert folder_to_load(tmp_path) == tmp_path / "best"
