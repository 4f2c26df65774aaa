"""Loading what the command line names: clusters, models in both forms, training values."""

import io
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hetplan.errors import Mistake, SpecError
from hetplan.specs import catalog
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.files import LoadedModel, load_cluster, load_inputs, load_model
from hetplan.specs.training import TrainingSpec

ROOT = Path(__file__).parents[2]
CLUSTERS = sorted((ROOT / "clusters").glob("*.yaml"))
MODELS = sorted((ROOT / "models").glob("*.yaml"))
CONFIGS = ROOT / "tests" / "data" / "huggingface"
LLAMA = CONFIGS / "llama-3-70b.json"
A100_V100 = ROOT / "clusters" / "a100-v100.yaml"

GROUP = "- {name: one, accelerator: h100-sxm5-80gb, nodes: 1, accelerators_per_node: 8}"
CLUSTER = f"name: c\ngroups:\n  {GROUP}\n"
MODEL = """name: m
architecture:
  layers: 4
  hidden_size: 512
  ffn_hidden_size: 2048
  attention_heads: 8
  vocab_size: 1000
"""
TRAINING = "training: {global_batch_size: 8, sequence_length: 128, precision: fp16, optimizer: sgd}\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a file and gives its path."""

    def to(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return to


Write = Callable[[str, str], Path]


def mistakes_of(load: Callable[[], object]) -> tuple[Mistake, ...]:
    """The mistakes that a call finds."""
    with pytest.raises(SpecError) as caught:
        load()
    return caught.value.mistakes


def only(load: Callable[[], object]) -> Mistake:
    """The one mistake that a call finds."""
    (mistake,) = mistakes_of(load)
    return mistake


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda p: p.stem)
def test_example_clusters_load(path: Path) -> None:
    """Every example is valid and has the name of its file."""
    cluster = load_cluster(path)
    assert isinstance(cluster, ClusterSpec)
    assert cluster.name == path.stem


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_example_models_load(path: Path) -> None:
    """Every example is valid and has the name of its file."""
    assert load_model(path).model.name == path.stem


def test_accelerators_are_found_by_any_name(write: Write) -> None:
    """A catalogue name, a driver's name and a datasheet written out all become datasheets."""
    written = (
        "{name: mine, formats: [bf16], peak: {bf16: 100 TFLOP/s}, memory_size: 24 GB, "
        "memory_bandwidth: 1 TB/s, link: 32 GB/s}"
    )
    for accelerator, name in (
        ("h100-sxm5-80gb", "h100-sxm5-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        (written, "mine"),
    ):
        text = CLUSTER.replace("h100-sxm5-80gb", accelerator)
        assert load_cluster(write("c.yaml", text)).groups[0].accelerator.name == name


def test_unknown_accelerators_get_suggestions(write: Write) -> None:
    """The nearest names and the way to all of them."""
    mistake = only(lambda: load_cluster(write("c.yaml", CLUSTER.replace("h100-sxm5-80gb", "h100-smx5-80gb"))))
    assert (mistake.line, mistake.column, mistake.width, mistake.key) == (3, 30, 14, "groups[0].accelerator")
    assert mistake.message == 'unknown accelerator "h100-smx5-80gb"'
    assert mistake.hint.startswith("did you mean h100-sxm5-80gb")
    assert mistake.hint.endswith(f"All {len(catalog.names())} names: hetplan show accelerators")


@pytest.mark.parametrize("value", ["5", "[a]", "~", "true"])
def test_accelerators_of_a_wrong_type_are_one_mistake(value: str, write: Write) -> None:
    """Neither a name nor a datasheet."""
    mistake = only(lambda: load_cluster(write("c.yaml", CLUSTER.replace("h100-sxm5-80gb", value))))
    assert mistake.message.startswith("must be a name or a datasheet, not ")


def test_mistakes_in_a_written_datasheet_have_places(write: Write) -> None:
    """The key path leads into the datasheet."""
    text = CLUSTER.replace("h100-sxm5-80gb", "{name: x, formats: [bf16], peak: {}, memory_size: 5, link: 1 GB/s}")
    found = mistakes_of(lambda: load_cluster(write("c.yaml", text)))
    assert [m.key for m in found] == [
        "groups[0].accelerator.memory_bandwidth",
        "groups[0].accelerator.peak",
        "groups[0].accelerator.memory_size",
    ]


def test_checks_and_types_are_reported_together(write: Write) -> None:
    """Mistakes of reading, of types, and of links come in file order."""
    text = """name: c
groups:
  - {name: a, accelerator: t4, nodes: 0, accelerators_per_node: 4}
  - {name: b, accelerator: t4, nodes: 2, accelerators_per_node: 4, nodes: 3}
links: 5
"""
    found = mistakes_of(lambda: load_cluster(write("c.yaml", text)))
    assert [(m.line, m.key) for m in found] == [
        (3, "groups[0].nodes"),
        (4, "groups[1].inter_node"),
        (4, "groups[1].nodes"),
        (5, "links"),
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [("10" + "0" * 29, "1e+30 is out of range"), ("9" * 400, "the number is too long"), ("1e30", "1e+30")],
)
def test_absurd_sizes_are_out_of_range(written: str, message: str, write: Write) -> None:
    """However large a number is, it is a mistake with a place."""
    mistake = only(lambda: load_cluster(write("c.yaml", CLUSTER.replace("nodes: 1", f"nodes: {written}"))))
    assert message in mistake.message
    assert (mistake.line, mistake.key) == (3, "groups[0].nodes")


def test_model_files_give_shapes_and_training(write: Write) -> None:
    """What the file says is taken, and nothing is noted as assumed."""
    loaded = load_model(write("m.yaml", MODEL + TRAINING))
    assert isinstance(loaded, LoadedModel)
    assert (loaded.model.name, loaded.model.architecture.layers) == ("m", 4)
    assert loaded.training == TrainingSpec(global_batch_size=8, sequence_length=128, precision="fp16", optimizer="sgd")
    assert loaded.notes == ()


def test_defaults_of_training_are_noted(write: Write) -> None:
    """What the file does not say is taken from the documented defaults, and said."""
    loaded = load_model(write("m.yaml", MODEL + "training: {global_batch_size: 8}\n"))
    assert loaded.training == TrainingSpec(global_batch_size=8)
    assert loaded.notes == ("training values taken by default: sequence_length 4096, precision bf16, optimizer adam",)


def test_the_command_line_wins(write: Write) -> None:
    """Overrides replace values of the file; None stands for not given."""
    overrides = {"global_batch_size": 16, "precision": "bf16", "sequence_length": None}
    loaded = load_model(write("m.yaml", MODEL + TRAINING), overrides)
    assert loaded.training == TrainingSpec(global_batch_size=16, sequence_length=128, precision="bf16", optimizer="sgd")


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        ({"sequence_length": 0}, "--sequence-length", "0 is out of range"),
        ({"global_batch_size": 10**30}, "--global-batch-size", "1e+30 is out of range"),
        ({"precision": "bf61"}, "--precision", '"bf61" is not one of the choices'),
        ({"optimizer": 5}, "--optimizer", "must be one of adam, sgd, not 5"),
        ({"speed": 5}, "--speed", "unknown key"),
    ],
)
def test_bad_overrides_are_mistakes_of_the_command_line(
    overrides: dict[str, object], key: str, message: str, write: Write
) -> None:
    """They have the name of the option and no line."""
    mistake = only(lambda: load_model(write("m.yaml", MODEL), overrides))
    assert (mistake.file, mistake.line, mistake.key, mistake.message) == ("command line", None, key, message)
    assert mistake.hint


def test_mistakes_of_file_and_command_line_come_together(write: Write) -> None:
    """First those of the file."""
    path = write("m.yaml", MODEL.replace("layers: 4", "layers: 0"))
    found = mistakes_of(lambda: load_model(path, {"sequence_length": 0}))
    assert [(m.file, m.key) for m in found] == [
        (str(path), "architecture.layers"),
        ("command line", "--sequence-length"),
    ]


def test_a_bare_config_is_a_model() -> None:
    """config.json of Llama-3-70B: exact parameters, defaults stated."""
    loaded = load_model(LLAMA)
    assert loaded.model.name == "llama-3-70b"
    assert loaded.model.parameters == 70_553_706_496
    assert loaded.training == TrainingSpec(sequence_length=4096)
    assert any("global_batch_size 512, sequence_length 4096" in note for note in loaded.notes)


@pytest.mark.parametrize(("config", "length"), [("gpt2", 1024), ("llama-3-70b", 4096)])
def test_a_bare_config_keeps_within_its_positions(config: str, length: int) -> None:
    """The default sequence is 4,096 tokens or as many as the model has positions."""
    assert load_model(CONFIGS / f"{config}.json").training.sequence_length == length


@pytest.mark.parametrize(("file", "name"), [("my-model/config.json", "my-model"), ("other.json", "other")])
def test_a_bare_config_has_the_name_of_its_place(file: str, name: str, write: Write) -> None:
    """config.json has the name of its folder, another file its own."""
    assert load_model(write(file, LLAMA.read_text())).model.name == name


def test_a_config_is_read_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stdin has no name, so the model is called model."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LLAMA.read_bytes())))
    assert load_model("-").model.name == "model"


def test_a_model_file_may_name_a_config(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is seen from the folder of the model file, wherever the program runs."""
    path = write("models/m.yaml", f"name: m\nhuggingface: configs/a.json\n{TRAINING}")
    shutil.copy(LLAMA, write("models/configs/a.json", ""))
    monkeypatch.chdir(tmp_path)
    for where in (path, Path("models/m.yaml")):
        loaded = load_model(where)
        assert (loaded.model.name, loaded.model.architecture.layers, loaded.training.optimizer) == ("m", 80, "sgd")


def test_a_config_that_is_not_there_is_a_mistake_where_it_is_named(write: Write) -> None:
    """The place is that of the path in the model file."""
    path = write("m.yaml", "name: m\nhuggingface: none.json\n")
    mistake = only(lambda: load_model(path))
    assert (mistake.file, mistake.line, mistake.column, mistake.key) == (str(path), 2, 14, "huggingface")
    assert mistake.message.endswith("none.json: no such file")


def test_a_config_called_dash_is_no_stdin(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the command line means stdin by it."""
    write("m.yaml", "name: m\nhuggingface: '-'\n")
    monkeypatch.chdir(tmp_path)
    assert only(lambda: load_model("m.yaml")).message.endswith("-: no such file")


def test_mistakes_in_a_config_have_places(write: Write) -> None:
    """Those of a config.json that a model file names stand in that file, together with those of the model file."""
    config = json.loads(LLAMA.read_text())
    config |= {"num_hidden_layers": 0, "hidden_size": "wide"}
    target = write("config.json", json.dumps(config, indent="\t"))
    path = write("m.yaml", "name: ''\nhuggingface: config.json\n")
    found = mistakes_of(lambda: load_model(path))
    assert [(m.file, m.key) for m in found] == [
        (str(path), "name"),
        (str(target), "hidden_size"),
        (str(target), "num_hidden_layers"),
    ]
    for mistake in found[1:]:
        assert mistake.line is not None
        assert f'"{mistake.key}"' in target.read_text().split("\n")[mistake.line - 1]


def test_an_unknown_family_is_refused_with_those_known(write: Write) -> None:
    """The nearest family is offered."""
    config = json.loads(LLAMA.read_text()) | {"model_type": "lama"}
    mistake = only(lambda: load_model(write("config.json", json.dumps(config))))
    assert mistake.key == "model_type"
    assert "llama" in mistake.hint


LEARNED = MODEL + "  position: learned\n  max_positions: 1024\n"


def test_learned_positions_bound_the_sequence(write: Write) -> None:
    """In the file, on the command line, and by default; an override that fits mends the file."""
    path = write("m.yaml", LEARNED + "training: {sequence_length: 2048}\n")
    mistake = only(lambda: load_model(path))
    assert (mistake.line, mistake.key) == (10, "training.sequence_length")
    assert mistake.message.startswith("2,048 tokens, and the model has 1,024")
    assert load_model(path, {"sequence_length": 1024}).training.sequence_length == 1024
    mistake = only(lambda: load_model(path, {"sequence_length": 4096}))
    assert (mistake.file, mistake.key) == ("command line", "--sequence-length")
    assert load_model(write("m.yaml", LEARNED)).training.sequence_length == 1024


def test_rotary_positions_do_not_bound_the_sequence(write: Write) -> None:
    """A longer sequence than the model was made for can be trained."""
    path = write("m.yaml", LEARNED.replace("learned", "rope"))
    assert load_model(path, {"sequence_length": 8192}).training.sequence_length == 8192


def test_inputs_collect_the_mistakes_of_both_files(write: Write) -> None:
    """Cluster first, then model, then command line."""
    cluster = write("c.yaml", CLUSTER.replace("nodes: 1", "nodes: none"))
    model = write("m.yaml", MODEL + "layers: 3\n")
    found = mistakes_of(lambda: load_inputs(cluster, model, {"precision": "x"}))
    assert [m.file for m in found] == [str(cluster), str(model), "command line"]


def test_inputs_of_two_missing_files_are_two_mistakes(tmp_path: Path) -> None:
    """A file that cannot be read does not hide the other."""
    found = mistakes_of(lambda: load_inputs(tmp_path / "c.yaml", tmp_path))
    assert [m.message for m in found] == ["no such file", "is a directory, not a file"]


def test_stdin_is_read_once() -> None:
    """It cannot be the cluster and the model."""
    assert only(lambda: load_inputs("-", "-")).message == "named for both the cluster and the model"


def test_swapped_files_are_recognised(write: Write) -> None:
    """Each is said to be the other, and nothing else is complained about."""
    found = mistakes_of(lambda: load_inputs(write("m.yaml", MODEL), write("c.yaml", CLUSTER)))
    assert [m.message for m in found] == ["holds a model, not a cluster", "holds a cluster, not a model"]
    assert only(lambda: load_cluster(LLAMA)).message == "holds a model, not a cluster"


def test_a_format_that_an_accelerator_lacks_is_refused(write: Write) -> None:
    """V100 and A100 cannot train in bf16 together; fp16 is offered, at the place that asks for bf16."""
    path = write("m.yaml", MODEL + "training:\n  precision: bf16\n")
    mistake = only(lambda: load_inputs(A100_V100, path))
    assert (mistake.file, mistake.line, mistake.column, mistake.width) == (str(path), 9, 14, 4)
    assert (mistake.kind, mistake.key) == ("precision", "training.precision")
    assert mistake.message == "v100-sxm2-32gb (group v100) cannot train in bf16"
    assert mistake.hint.startswith("fp16 runs on every group")
    assert load_inputs(A100_V100, path, {"precision": "fp16"}).training.precision == "fp16"


def test_a_format_of_the_command_line_is_refused_there(write: Write) -> None:
    """The option is named, not the file that it overrides."""
    mistake = only(lambda: load_inputs(A100_V100, write("m.yaml", MODEL + TRAINING), {"precision": "bf16"}))
    assert (mistake.file, mistake.key, mistake.line) == ("command line", "--precision", None)


def test_a_format_taken_by_default_is_refused_as_such(write: Write) -> None:
    """The message says that nobody wrote it; in a config.json it stands at the format of the weights."""
    mistake = only(lambda: load_inputs(A100_V100, write("m.yaml", MODEL)))
    assert mistake.message == "v100-sxm2-32gb (group v100) cannot train in bf16, the default"
    assert mistake.line == 1
    mistake = only(lambda: load_inputs(A100_V100, LLAMA))
    assert mistake.key == "torch_dtype"
    assert mistake.excerpt[-1][1].strip() == '"torch_dtype": "bfloat16",'


def test_groups_without_a_common_format_are_named(write: Write) -> None:
    """Where no format runs everywhere, the hint says where the one asked for does."""
    memory = "memory_size: 24 GB, memory_bandwidth: 1 TB/s"
    sheet = f"{{name: odd, formats: [fp8], peak: {{fp8: 1 PFLOP/s}}, {memory}, link: 32 GB/s}}"
    groups = f"{GROUP}\n  - {{name: two, accelerator: {sheet}, nodes: 1, accelerators_per_node: 8}}"
    groups = groups.replace("h100-sxm5-80gb", "v100-sxm2-32gb")
    links = "links: [{between: [one, two], bandwidth: 10 GB/s, latency: 5 us}]\n"
    cluster = write("c.yaml", CLUSTER.replace(GROUP, groups) + links)
    mistake = only(lambda: load_inputs(cluster, write("m.yaml", MODEL + TRAINING)))
    assert mistake.message == "odd (group two) cannot train in fp16"
    assert mistake.hint == "no format runs on every group; fp16 runs on one"


def test_inputs_load_in_milliseconds() -> None:
    """The largest cluster and a model take under 60 ms, the best of three with nothing kept from before."""
    times = []
    for _ in range(3):
        for cached in (catalog.accelerator, catalog.all_accelerators, catalog.names, catalog._load, catalog._texts):
            cached.cache_clear()
        started = time.perf_counter()
        load_inputs(ROOT / "clusters" / "mix-100000.yaml", ROOT / "models" / "llama-140b.yaml")
        times.append(time.perf_counter() - started)
    assert min(times) < 0.06
