"""``graphc simulate``: what it prints, and a schedule that it suggests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import graphc
from graphc.cli.guard import guarded
from graphc.kernels.contract import Catalog
from graphc.profiles import load_profile, unknown_kernels
from graphc.resources import kernel_folders, machine_path, shipped
from graphc.spec.model import LayerSpec, load_spec
from graphc.suggest import axes_of, suggest
from graphc.text.diagnostics import UsageError

SPEC = str(shipped("specs") / "moe_peer.yaml")
MACHINE = str(machine_path("h200x2"))


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert guarded(["simulate", *words]) == code
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


def facts(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(capsys, *words, "--json"))
    return found


def test_the_facts_of_a_replay(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, SPEC, "--machine", MACHINE)
    assert 0 < found["lower_bound_us"] < found["total_us"]
    assert found["busy"]["primary sm"] > 0.5
    assert found["routes"]["layer.0/activations"] == "p2p"
    assert found["bound_by"] in found["bounds_us"]
    assert found["critical_path"][0]["step"] == "layer.0/mix"
    assert found["total_us"] == graphc.simulate(SPEC, machine=MACHINE).total_us


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["moe_peer", "--machine", "h200x2_no_p2p", "--preset", "full", "--set", "pieces=16"]
    text = printed(capsys, *words)
    first, *rest = text.splitlines()
    assert first.startswith("moe_peer by host, host_push on h200x2_no_p2p: ")
    assert first.endswith(" ms predicted for 147 ops")
    assert any(line.startswith("  at least ") for line in rest)
    assert "peer copy to host" in text
    assert "critical path" in text


def test_a_plan_is_simulated_like_its_spec(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.graphc"
    graphc.compile(SPEC, preset="small", cubins=False, arch="sm_90a").save(plan)
    by_plan = facts(capsys, str(plan), "--machine", MACHINE)
    assert by_plan == facts(capsys, SPEC, "--preset", "small", "--machine", MACHINE)


def test_entries_are_scheduled_together_and_one_is_predicted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Launched freely, units of one entry shake hands with those of another."""
    values = {"ranks": 2, "gpus": 2, "units": "device", "launch": "free", "apart": True}
    plan = tmp_path / "plan.graphc"
    compiled = graphc.compile("ep_throughput", preset="small", cubins=False, **values)
    compiled.save(plan)
    assert graphc.load(plan).variants[0].proof.handshakes
    sets = [f"--set={name}={str(value).lower()}" for name, value in values.items()]
    by_plan = facts(capsys, str(plan), "--machine", MACHINE)
    spec = ["ep_throughput", "--preset", "small", "--machine", MACHINE, *sets]
    assert by_plan == facts(capsys, *spec)
    assert by_plan["entry"] == "dispatch"
    assert by_plan["ops"] == len(compiled.variants[0].schedule.program.ops)
    assert "  of the entries dispatch, expert, combine: dispatch\n" in printed(capsys, *spec)
    others = compiled.variants[0].others
    for entry, schedule in others.items():
        found = facts(capsys, *spec, "--entry", entry)
        assert found["entry"] == entry
        assert found["ops"] == len(schedule.program.ops)
        assert found == facts(capsys, str(plan), "--machine", MACHINE, "--entry", entry)
        by_call = graphc.simulate(compiled, machine=MACHINE, entry=entry)
        assert found["total_us"] == by_call.total_us
        assert found["total_us"] != by_plan["total_us"]
    page = tmp_path / "page.html"
    printed(capsys, *spec, "--entry", "combine", "--html", str(page))
    assert "entry combine" in page.read_text()
    refused = printed(capsys, str(plan), "--machine", MACHINE, "--set", "pieces=2", code=2)
    assert "compiled already" in refused


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--machine", "h200"], 1, "did you mean 'h200x2'"),
        ([], 2, "--machine"),
        (["--machine", "h200x2_no_p2p", "--set", "route=p2p"], 2, "by way of the host"),
        (["--machine", "h200x2", "--count", "9999999"], 2, "capacity"),
        (["--machine", "h200x2", "--out", "x.yaml"], 2, "--suggest"),
        (["--machine", "h200x2", "--set", "piece=3"], 1, "piece"),
        (["--machine", "h200x2", "--html", "no/such/page.html"], 1, "there is no folder 'no/such'"),
        (["--machine", "h200x2", "--suggest", "--out", "no/such.yaml"], 1, "no folder 'no'"),
    ],
)
def test_what_does_not_fit_is_told(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    assert message in printed(capsys, SPEC, *words, code=code)


RANKS = ["ep_throughput", "--preset=small", "--set=ranks=3", "--set=gpus=3"]


def test_units_need_a_gpu_each_as_on_a_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    values = {"ranks": 3, "gpus": 3, "units": "device"}
    message = "units 'gpu0' and 'gpu1' are both placed on GPU 0"
    told = printed(capsys, *RANKS, "--set=units=device", "--machine", MACHINE, code=2)
    assert message in told
    assert "this machine has 2" in told
    plan = graphc.compile("ep_throughput", preset="small", cubins=False, **values)
    plan.save(tmp_path / "plan.graphc")
    path = str(tmp_path / "plan.graphc")
    assert message in printed(capsys, path, "--machine", MACHINE, code=2)
    with pytest.raises(UsageError, match="'gpu1' and 'gpu2' are both placed on GPU 1"):
        graphc.simulate(plan, machine="h100x8", devices=[0, 1, 1])
    assert facts(capsys, path, "--machine", "h100x8")["placed"] == {"gpu0": 0, "gpu1": 1, "gpu2": 2}


def test_kernels_that_reach_other_gpus_are_not_sent_to_routes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["ep_throughput", "--preset=small", "--set=gpus=2"]
    graphc.compile("ep_throughput", preset="small", gpus=2, cubins=False).save(tmp_path / "plan")
    for each in (words, [str(tmp_path / "plan")]):
        told = printed(capsys, *each, "--machine", "h200x2_no_p2p", code=2)
        assert "'h200x2_no_p2p' do not reach each other's memory, but kernels of it touch" in told
        assert "take a machine with peer access, or place all devices on one GPU" in told
        assert "host_copy" not in told
    assert facts(capsys, *words[:2], "--machine", "h200x2_no_p2p")["total_us"] > 0


def test_devices_that_share_a_gpu_for_want_of_others_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in ([], ["--json"]):
        assert guarded(["simulate", *RANKS, "--machine", MACHINE, *words]) == 0
        found = capsys.readouterr()
        assert found.err == "note: 3 devices on 2 GPUs of 'h200x2': all on GPU 0\n"
    assert json.loads(found.out)["placed"] == {"gpu0": 0, "gpu1": 0, "gpu2": 0}
    assert guarded(["simulate", *RANKS, "--machine", "h100x8"]) == 0
    assert capsys.readouterr().err == ""


def test_a_dtype_without_a_rate_is_told_where_arithmetic_decides(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(Path(MACHINE).read_text().replace("f16: 632, bf16: 632", "f16: 632"))
    words = ["simulate", "--machine", str(path), "--json"]
    line = 1 + next(i for i, each in enumerate(path.read_text().splitlines()) if "tflops:" in each)
    assert guarded([*words, "moe_ep", "--preset=full"]) == 0
    told = capsys.readouterr().err
    assert f"{path}:{line}:3: warning[unknown-rate]: no rate of bf16 is here: " in told
    assert ": that of f32 counts for dense, grouped_down, grouped_up\n" in told
    assert told.count("warning") == 1
    # Its combine has a few operations in bf16, and waits for memory.
    assert guarded([*words, "ep_throughput", "--preset=small"]) == 0
    assert capsys.readouterr().err == ""
    assert guarded(["simulate", "moe_ep", "--preset=full", "--machine", MACHINE]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command", [["show"], ["simulate", "--machine", MACHINE]], ids=lambda words: words[0]
)
def test_only_one_entry_is_named(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    words = [*command, "ep_throughput", "--preset=small", "--set=prepare=explicit"]
    assert guarded([*words, "--entry=prepare", "--entry=step"]) == 2
    message = "--entry is given 2 times (prepare, step): name one; 'graphc run' launches several"
    assert message in capsys.readouterr().err
    assert guarded([*words, "--entry=prepare"]) == 0
    assert guarded(words) == 0


@pytest.fixture(scope="module")
def misspelt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of a kernel that graphc has not, and of one that is no kernel's name at all."""
    path = tmp_path_factory.mktemp("machines") / "mine.yaml"
    lines = Path(MACHINE).read_text().replace("\n  grouped_up:", "\n  groupd_up:")
    path.write_text(lines + "  elsewhere: {start_us: 1.0, source: another project}\n")
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", SPEC, "--preset=small", "--machine"],
        ["simulate", SPEC, "--preset=small", "--json", "--machine"],
        ["sweep", SPEC, "--preset=small", "--axis=pieces=1", "--workers=0", "--simulate"],
        ["trace", SPEC, "--preset=small", "--set=layers=1", "--backend=reference", "--machine"],
    ],
    ids=lambda words: " ".join(each for each in words if each != SPEC),
)
def test_kernels_that_a_profile_alone_knows_are_told_with_what_is_predicted(
    capsys: pytest.CaptureFixture[str], misspelt: Path, words: list[str]
) -> None:
    assert guarded([*words, str(misspelt)]) == 0
    text = misspelt.read_text().splitlines()
    one, two = text.index("  groupd_up:") + 1, len(text)
    what = "is no kernel '{}' here: no prediction rests on these figures"
    assert capsys.readouterr().err == (
        f"{misspelt}:{one}:3: warning[unknown-kernel]: there {what.format('groupd_up')}\n"
        f"   {one:>2} |   groupd_up:\n"
        "      |   ^^^^^^^^^\n"
        "  hint: did you mean 'grouped_up'?\n"
        f"{misspelt}:{two}:3: warning[unknown-kernel]: there {what.format('elsewhere')}\n"
        f"  {two:>3} |   elsewhere: {{start_us: 1.0, source: another project}}\n"
        "      |   ^^^^^^^^^\n"
        "  hint: --kernels FOLDER names a folder that has it\n"
    )


def test_kernels_of_a_folder_of_ones_own_are_known_to_a_profile(
    capsys: pytest.CaptureFixture[str], misspelt: Path, tmp_path: Path
) -> None:
    convert = (shipped("templates") / "convert.cu.j2").read_text()
    for name in ("groupd_up", "elsewhere"):
        (tmp_path / f"{name}.cu.j2").write_text(convert.replace("convert", name))
    words = ["simulate", SPEC, "--preset", "small", "--machine", str(misspelt)]
    assert guarded([*words, "--kernels", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("path", sorted(machine_path("h200x2").parent.glob("*.yaml")))
def test_shipped_profiles_have_figures_of_shipped_kernels_alone(path: Path) -> None:
    assert unknown_kernels(load_profile(path), Catalog(kernel_folders()).names()) == []


def test_the_time_of_the_entry_that_is_named_counts_for_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["ep_throughput", "--preset=small", "--set=prepare=explicit", "--machine", MACHINE]
    words += ["--set=dispatch_blocks=24", "--set=combine_blocks=32"]
    for entry in ("step", "prepare"):
        named = [*words, "--entry", entry]
        assert facts(capsys, *named, "--suggest")["given_us"] == facts(capsys, *named)["total_us"]


@pytest.mark.parametrize(
    "name", ["machine", "profile", "devices", "count", "entry", "told", "found", "target"]
)
def test_a_param_may_have_the_name_of_what_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    spec, out = tmp_path / "names.yaml", tmp_path / "best.yaml"
    spec.write_text(
        f"graphc: 1\nname: names\nparams: {{{name}: {{default: 8}}}}\ndevices: [one]\nbuffers:\n"
        f"  x: {{device: one, dtype: f32, shape: [4096, {name}], role: input}}\n"
        f"  y: {{device: one, dtype: f16, shape: [4096, {name}], role: output}}\n"
        "ops:\n  - {name: convert, kernel: convert, device: one, args: {x: x, y: y}}\n"
    )
    words = [str(spec), "--machine", MACHINE]
    large = facts(capsys, *words, "--set", f"{name}=4096")["total_us"]
    assert large > facts(capsys, *words)["total_us"]
    suggested = facts(capsys, *words, "--set", f"{name}=4096", "--suggest", "--out", str(out))
    assert suggested["given_us"] == large


def test_a_suggestion_is_a_schedule_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "best.yaml"
    words = [SPEC, "--preset", "full", "--machine", MACHINE]
    given = [
        *words,
        "--set",
        "route=host_copy",
        "--set",
        "expert_blocks=0",
        "--set",
        "link_blocks=0",
    ]
    found = facts(capsys, *given, "--suggest", "--out", str(out))
    assert found["total_us"] < 0.95 * found["given_us"]
    assert found["given_us"] == facts(capsys, *given)["total_us"]
    again = facts(capsys, *words, "--schedule", str(out))
    assert again["total_us"] == pytest.approx(found["total_us"])
    sets = [word for each in found["set"] for word in ("--set", each.replace("'", ""))]
    assert facts(capsys, *given, *sets)["total_us"] == pytest.approx(found["total_us"])


def test_a_suggestion_keeps_what_was_given() -> None:
    found = suggest(SPEC, "h200x2", preset="small", route="host", max_streams=1)
    assert not {"route", "schedule.max_streams"} & {*found.values}
    assert found.total_us <= found.given_us
    assert found.params["route"] == "host"


def test_params_that_shape_the_layer_are_no_schedule() -> None:
    spec = load_spec(SPEC)
    assert isinstance(spec, LayerSpec)
    axes = axes_of(spec, load_profile("h200x2"))
    assert {"route", "pieces", "compute", "early", "expert_blocks"} <= {*axes}
    assert not {"tokens", "hidden", "dtype", "wire", "peer_experts", "layers"} & {*axes}
    assert axes["expert_blocks"][0] == 0
    assert 0 not in axes["pieces"]
