"""A calibration of a simulated machine finds the machine again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import RecordingDriver

import graphc
from graphc.calibrate import specs
from graphc.calibrate.bench import CudaBench, as_file
from graphc.calibrate.fit import as_text
from graphc.calibrate.measure import Figures, Times
from graphc.calibrate.run import calibrate
from graphc.cli.guard import guarded
from graphc.gpu.protocol import DeviceFacts
from graphc.profiles import ProfileSpec, at, load_profile
from graphc.simulation.predict import Prediction

TIMING_US = 4.0


class SimulatedBench:
    """A profile in place of a machine: what its ops are predicted to take, and timing them."""

    def __init__(self, profile: ProfileSpec) -> None:
        self.profile, gpus = profile, profile.gpus
        self.gpus = tuple(
            DeviceFacts(index, gpus.name, gpus.arch, gpus.sms, gpus.shared_optin, 0, "")
            for index in range(gpus.count)
        )
        self.has_peer, self.about = profile.peer is not None, "a simulated machine"

    def predicted(
        self, spec: str | Path, devices: Sequence[int], count: int | None = None, **values: Any
    ) -> Prediction:
        with as_file(spec) as path:
            return graphc.simulate(
                path, machine=self.profile, count=count, devices=list(devices), **values
            )

    def ops(
        self,
        spec: str | Path,
        devices: Sequence[int],
        counts: Sequence[int | None] = (None,),
        **values: Any,
    ) -> list[Times]:
        found = []
        for count in counts:
            one = self.predicted(spec, devices, count, **values)
            ran = zip(one.orders.ops, one.ran, strict=True)
            found.append({op.name: each.stop_us - each.ready_us + TIMING_US for op, each in ran})
        return found

    def replay(self, spec: str | Path, devices: Sequence[int], **values: Any) -> float:
        return self.predicted(spec, devices, **values).total_us

    def launch(self, spec: str | Path, devices: Sequence[int]) -> float:
        return self.predicted(spec, devices).launch_us


def calibrated(name: str, folder: Path) -> ProfileSpec:
    path = folder / "again.yaml"
    path.write_text(as_text(calibrate("again", bench=SimulatedBench(load_profile(name)))))
    return load_profile(path)


@pytest.mark.parametrize("name", ["h200x2", "h200x2_no_p2p", "consumer2_pcie4"])
def test_a_machine_is_found_again(name: str, tmp_path: Path) -> None:
    was, found = load_profile(name), calibrated(name, tmp_path)
    assert found.memory.gb_s == pytest.approx(was.memory.gb_s, rel=0.03)
    for gpu in (0, 1):
        assert found.to_host_gb_s(gpu) == pytest.approx(was.to_host_gb_s(gpu), rel=0.02)
        assert found.from_host_gb_s(gpu) == pytest.approx(was.from_host_gb_s(gpu), rel=0.02)
    if was.gpus.copy_engines > 2:
        assert found.host.both_ways_gb_s == pytest.approx(was.host.both_ways_gb_s, rel=0.03)
        assert found.host.all_gb_s == pytest.approx(was.host.all_gb_s, rel=0.03)
    for mine, theirs in ((found.host.reads_gb_s, was.host.reads_gb_s),):
        assert [at(mine, x) for x in (8, 64)] == pytest.approx(
            [at(theirs, x) for x in (8, 64)], rel=0.03
        )
    assert (found.peer is None) == (was.peer is None)
    if was.peer is not None and found.peer is not None:
        assert found.peer.copy_gb_s == pytest.approx(was.peer.copy_gb_s, rel=0.03)


def test_one_gpu_is_enough(tmp_path: Path) -> None:
    was = load_profile("h200x2")
    single = was.model_copy(update={"peer": None, "gpus": was.gpus.model_copy(update={"count": 1})})
    path = tmp_path / "single.yaml"
    path.write_text(as_text(calibrate("single", bench=SimulatedBench(single))))
    found = load_profile(path)
    assert found.gpus.count == 1
    assert found.peer is None
    assert found.host.to_host_gb_s == pytest.approx(was.to_host_gb_s(0), rel=0.02)
    assert found.host.all_gb_s == found.host.both_ways_gb_s
    total_us = graphc.simulate("moe_peer", machine=found, route="host_copy").total_us
    assert total_us == pytest.approx(
        graphc.simulate("moe_peer", machine=single, route="host_copy").total_us, rel=0.06
    )


@pytest.mark.parametrize("route", ["host", "host_copy", "p2p"])
@pytest.mark.parametrize("pieces", [1, 16])
def test_what_was_calibrated_predicts_alike(route: str, pieces: int, tmp_path: Path) -> None:
    found = calibrated("h200x2", tmp_path)
    values: dict[str, Any] = {"preset": "full", "route": route, "pieces": pieces}
    was = graphc.simulate("moe_peer", machine="h200x2", **values).total_us
    assert graphc.simulate("moe_peer", machine=found, **values).total_us == pytest.approx(
        was, rel=0.06
    )


class AnyKernel(dict[str, Callable[..., None]]):
    """Kernels that do nothing, under any name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., None]:
        return lambda *values, **facts: None


def test_the_machine_at_hand_runs_the_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = RecordingDriver(gpus=2)
    driver.kernels = AnyKernel(driver.kernels)
    bench = CudaBench(driver)
    assert bench.about == "2 Fake GPU, driver for CUDA 13.0"
    chain = specs.chain(4, devices=["near", "far"])
    assert bench.ops(chain, [0, 1]) == [{f"op{index}": 1.0 for index in range(4)}]
    there = specs.moves(route="host_copy", in_turn=True, rows=1, hops=2)
    assert bench.replay(there, [0, 0]) == 1.0
    assert bench.launch(there, [0, 1]) > 0.0
    assert not driver.leaks()


def test_without_a_gpu_there_is_nothing_to_measure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("graphc.calibrate.bench.open_driver", lambda: RecordingDriver(gpus=0))
    out = tmp_path / "machine.yaml"
    assert guarded(["calibrate", "--out", str(out)]) == 3
    assert "there is no GPU to measure" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("option", ["--out", "--figures"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("graphc.calibrate.run.CudaBench", lambda: pytest.fail("it measures"))
    words = ["--out", str(tmp_path / "mine.yaml"), option, str(tmp_path / "none" / "x.yaml")]
    assert guarded(["calibrate", *words]) == 1
    assert f"there is no folder '{tmp_path / 'none'}'" in capsys.readouterr().err


def test_a_calibration_is_written_with_its_times(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = SimulatedBench(load_profile("h200x2"))
    monkeypatch.setattr("graphc.calibrate.run.CudaBench", lambda: bench)
    out, times = tmp_path / "mine.yaml", tmp_path / "times.json"
    assert guarded(["calibrate", "--out", str(out), "--figures", str(times)]) == 0
    assert "to a peer" in capsys.readouterr().out
    assert load_profile(out).name == "mine"
    assert set(Figures.__dataclass_fields__) <= set(json.loads(times.read_text()))
