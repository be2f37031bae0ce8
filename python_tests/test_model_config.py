"""A model's config: its checks, its JSON, and that config.json files of versions before 0.2 mean what they meant."""

import json
from dataclasses import replace

import pytest
import torch
from testing.tiny_models import small_model

from softrank_ext import Bridge, DataFacts, Riffle, model_folder, pretrained, sample
from softrank_ext.model import PRESETS, SoftRankConfig, SoftRankModel

pytestmark = pytest.mark.usefixtures("one_thread")


def test_presets():
    assert (PRESETS["mnist"].d_model, PRESETS["mnist"].feed_forward) == (128, 512)
    assert (PRESETS["tsp"].encoder_layers, PRESETS["tsp"].decoder_layers) == (8, 8)
    assert (PRESETS["tsp-as-printed"].d_model, PRESETS["tsp-as-printed"].feed_forward) == (1024, 256)
    config = replace(PRESETS["mnist"], head="gpl", encoder_layers=7, decoder_layers=0)
    config = replace(config, embedder={"kind": "learned", "num_items": 9})
    assert SoftRankModel(config).eval().decode(torch.arange(9)[None], 1.0)[0].shape == (1, 9)


@pytest.mark.parametrize(
    "fields, message",
    (
        ({"d_model": 0}, "d_model must be an integer of at least 1, got 0"),
        ({"time_steps": 2.5}, "time_steps must be an integer of at least 1, got 2.5"),
        ({"d_model": 100}, "d_model must be even and a multiple of heads = 8, got 100"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"norm_first": "yes"}, "norm_first must be one of True, False, got 'yes'"),
        ({"head": "points"}, "head must be one of 'pointer', 'linear', 'gpl', 'pl', got 'points'"),
        ({"time": "discrete"}, "time must be one of 'grid', 'continuous', got 'discrete'"),
        ({"reads": "ranks"}, "reads must be one of 'order', 'soft-ranks', got 'ranks'"),
        ({"process": Riffle((0, 3)), "reads": "soft-ranks"}, 'reads must be "order" for the process Riffle'),
        (
            {"process": Bridge(target="previous"), "reads": "soft-ranks"},
            'reads must be "order" for the process Bridge.*previous.*, got .soft-ranks.',
        ),
        ({"head": "gpl"}, "decoder_layers of a gpl head must be 0: it reads the encoder alone, got 4"),
        ({"decoder_layers": 0}, "decoder_layers of a pointer head must be at least 1, got 0"),
        ({"head": "linear"}, "max_items must be given for a linear head"),
        ({"max_items": 9}, "max_items is for a linear head, a pointer head takes any N; got 9"),
        ({"heads": True}, "heads must be an integer of at least 1, got True"),
        ({"process": "riffle"}, "process must be a Bridge or a Riffle, got 'riffle'"),
        ({"data": {"symmetry": "tour"}}, "data must be DataFacts, got {'symmetry': 'tour'}"),
        ({"process": Riffle((0, 3)), "time": "continuous"}, 'time must be "grid" for the process Riffle'),
        ({"process": Bridge(target="previous"), "time": "continuous"}, 'time must be "grid" for the process Bridge'),
        (
            {"process": Bridge(target="previous", sampling_steps=4)},
            'sampling_steps of target "previous" must be time_steps',
        ),
    ),
)
def test_config_errors(fields, message):
    with pytest.raises(ValueError, match=message):
        SoftRankConfig(**fields)


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({"time_steps": 7}, 7),
        ({"time_steps": 7, "process": Bridge(sampling_steps=3)}, 7),
        ({"time": "continuous"}, 1000),
        ({"process": Riffle((0, 3, 9)), "time_steps": 7}, 9),
    ],
    ids=str,
)
def test_what_the_network_reads_of_time(changes, scale):
    """The grid that it was trained on; how many steps a call takes is another field."""
    assert SoftRankConfig(**changes).time_scale == scale


CONFIGS = {
    "default": SoftRankConfig(),
    "tours": SoftRankConfig(
        embedder={"kind": "points", "cycles": 16.0},
        process=Bridge(0.1, "gaussian", "reflected", sampling_steps=8),
        data=DataFacts("tour", "counterclockwise", True, (20, 50), (0.0, 1.0), "unit square", "square"),
    ),
    "riffle": SoftRankConfig(head="gpl", decoder_layers=0, process=Riffle((0, 2, 7), "previous")),
    "soft ranks": SoftRankConfig(time="continuous", reads="soft-ranks"),
    "previous": SoftRankConfig(time_steps=3, process=Bridge(target="previous", sampling_steps=3)),
}


class TestJson:
    @pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
    def test_through_a_file(self, config):
        again = SoftRankConfig.from_json(json.loads(json.dumps(config.to_json())))
        assert again == config and type(again.process) is type(config.process)

    def test_without_a_field_orders_are_read(self):
        """As files have it that were written before models could read soft ranks."""
        written = SoftRankConfig().to_json()
        assert written.pop("reads") == "order"
        assert SoftRankConfig.from_json(written).reads == "order"

    def test_process_and_data_are_objects(self):
        written = CONFIGS["tours"].to_json()
        assert written["process"] == {
            "kind": "bridge", "noise_scale": 0.1, "prior": "gaussian", "carry": "reflected", "target": "clean",
            "sampling_steps": 8,
        }  # fmt: skip
        assert written["data"] == {
            "symmetry": "tour", "direction": "counterclockwise", "fixed_start": True, "num_items": (20, 50),
            "value_range": (0.0, 1.0), "scaling": "unit square", "copies": "square", "num_machines": None,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"colour": 1}, "config has unknown field colour; known are d_model, feed_forward, heads"),
            ({"data": {"colour": 1}}, "data has unknown field colour; known are symmetry, direction, fixed_start"),
            ({"data": "tours"}, "data must be an object, got 'tours'"),
            ({"process": {"kind": "bridge", "eta": 1}}, "process has unknown field eta"),
            ({"steps": 5}, "config has unknown field steps"),
            ({"d_model": 100}, "d_model must be even and a multiple of heads = 8, got 100"),
        ],
    )
    def test_says_what_is_wrong(self, changes, message):
        with pytest.raises(ValueError, match=message):
            SoftRankConfig.from_json({**SoftRankConfig().to_json(), **changes})

    def test_a_saved_model_knows_how_it_is_sampled(self, tmp_path):
        model, items = small_model(), torch.randn(3, 4, 1)
        model.save_pretrained(tmp_path)
        again = SoftRankModel.from_pretrained(tmp_path)
        assert again.config == model.config and again.process.visited == (0, 1, 3)
        assert torch.equal(sample(again, items, seed=1).order, sample(model, items, seed=1).order)


# Fields of config.json as version 0.1 wrote them, without those that did not change.
COMMON = {
    "d_model": 16, "feed_forward": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0,
    "head": "pointer", "max_items": None, "norm_first": True, "time": "grid",
}  # fmt: skip
POINTS = {"kind": "points", "cycles": 16.0, "slowing": 64.0}
NUMBERS = {"kind": "linear", "features": 1}
OLD = {"steps": 5, "process": "soft-rank", "target": "clean", "visited": None}


class TestFilesBefore02:
    """`steps` was the grid that the network reads and the number of steps; noise had no settings: 0.5 and uniform."""

    @pytest.mark.parametrize(
        ("fields", "wanted"),
        [
            ({**OLD, "embedder": {"kind": "light-number-cnn"}}, {}),
            ({**OLD, "embedder": {"kind": "learned", "num_items": 12}}, {}),
            ({**OLD, "steps": 7, "embedder": NUMBERS}, {"time_steps": 7, "process": Bridge(sampling_steps=7)}),
            (
                {**OLD, "steps": 7, "embedder": NUMBERS, "time": "continuous"},
                {"time_steps": 7, "process": Bridge(sampling_steps=7), "time": "continuous"},
            ),
            (
                {**OLD, "target": "previous", "steps": 3, "embedder": NUMBERS},
                {"time_steps": 3, "process": Bridge(target="previous", sampling_steps=3)},
            ),
            (
                {**OLD, "process": "riffle", "visited": [0, 2, 7], "target": "previous", "embedder": NUMBERS},
                {"process": Riffle((0, 2, 7), "previous")},
            ),
            ({**OLD, "process": "riffle", "visited": [0, 3], "embedder": NUMBERS}, {"process": Riffle((0, 3))}),
            ({"steps": 5, "embedder": NUMBERS}, {}),  # before processes had names
            ({"embedder": NUMBERS}, {}),
            (
                {**OLD, "embedder": POINTS},
                {"data": DataFacts("tour", None, True, None, (0.0, 1.0), "unit square")},
            ),
        ],
        ids=[
            "sorting", "preferences", "seven steps", "continuous", "previous", "riffle, previous", "riffle",
            "without process", "without steps", "tours",
        ],
    )  # fmt: skip
    def test_mean_what_they_meant(self, fields, wanted):
        given = {**COMMON, **fields}
        config = SoftRankConfig.from_json(json.loads(json.dumps(given)))
        assert config == SoftRankConfig(**{**COMMON, "embedder": fields["embedder"], "init": "published", **wanted})
        assert given == {**COMMON, **fields}, "what was given is left alone"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"process": "cards"}, "process must be one of 'soft-rank', 'riffle', got 'cards'"),
            ({"target": "next"}, "target must be one of 'clean', 'previous', got 'next'"),
            ({"process": "riffle"}, "visited must be ascending numbers of riffles from 0 to 52"),
            ({"process": "riffle", "visited": [1, 3]}, r"as \(0, 3, 5, 9\), got \[1, 3\]"),
            ({"visited": [0, 3]}, 'visited is for process "riffle"'),
            ({"steps": 2.5}, "must be an integer of at least 1, got 2.5"),
            ({"colour": 1}, "config has unknown field colour"),
        ],
    )
    def test_says_what_is_wrong(self, changes, message):
        with pytest.raises(ValueError, match=message):
            SoftRankConfig.from_json({**COMMON, **OLD, "embedder": NUMBERS, **changes})

    def test_a_folder_is_read(self, tmp_path):
        model = small_model(Bridge(sampling_steps=2), "pointer")
        model.save_pretrained(tmp_path)
        path = tmp_path / model_folder.CONFIG_FILE
        fields = json.loads(path.read_text())
        for name in ("model_type", "process", "data", "time_steps"):
            del fields[name]
        path.write_text(json.dumps({**fields, "steps": 2}))
        (tmp_path / "manifest.json").unlink()
        again, items = SoftRankModel.from_pretrained(tmp_path), torch.randn(3, 4, 1)
        assert again.config == model.config
        assert torch.equal(sample(again, items, seed=1).order, sample(model, items, seed=1).order)


def test_bundled_models_know_their_process_and_data():
    """As 0.1 had it: noise scale 0.5, a uniform prior; only tours have a fixed start. Steps are as measured."""
    for name in pretrained.bundled_names():
        fields = json.loads((pretrained.BUNDLED / name / model_folder.CONFIG_FILE).read_text())
        assert fields.pop("model_type") == "soft-rank"
        config = SoftRankConfig.from_json(fields)
        assert config.process == Bridge(0.5, "uniform", "exact", "clean", 1)
        assert config.time_steps == (1 if name == "flowshop" else 5)
        assert config.data.fixed_start == (name == "tsp") == (config.data.symmetry == "tour")
        assert config.data.num_items is not None
        assert config.data.copies == ("square" if name == "tsp" else "none")
        assert json.loads(json.dumps(config.to_json())) == fields, "nothing is left to a default"


def test_unknown_model_types_are_told(tmp_path):
    small_model().save_pretrained(tmp_path)
    path = tmp_path / model_folder.CONFIG_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "oracle"}))
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"model_type must be one of soft-rank.*, got 'oracle'"):
        model_folder.load_model(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("d_model", 10**9, "d_model must be an integer of at most 65536, got 1000000000"),
        ("encoder_layers", 10**6, "encoder_layers must be an integer of at most 1000, got 1000000"),
        ("time_steps", 10**18, "time_steps must be an integer of at most 1000000"),
        ("embedder", [1], "embedder must be an object with a kind, or None"),
        ("d_model", "128", "d_model must be an integer of at least 1, got '128'"),
    ],
)
def test_sizes_are_not_believed(field, value, message):
    with pytest.raises(ValueError, match=message):
        SoftRankConfig(**{field: value})
    with pytest.raises(ValueError, match="sampling_steps must be an integer of at most 1000000, got"):
        Bridge(sampling_steps=10**18)
    with pytest.raises(ValueError, match="noise_scale must be at most 1000, got 1e"):
        Bridge(noise_scale=1e38)
