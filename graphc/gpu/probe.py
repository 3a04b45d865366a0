"""What the machine at hand really does, found out with data: peers, link rates, doctor's facts.

Drivers have been seen to say that two devices reach each other and then to deliver wrong bytes.
So every pair is tried in each direction with real bytes: by copy engine, by a kernel that reads
the other's memory and by a kernel that writes it. The kernel is PTX, so no compiler is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from graphc.gpu import open_driver
from graphc.gpu.protocol import CopyCall, DeviceFacts, Driver, FillCall, KernelCall
from graphc.text.diagnostics import CudaError

if TYPE_CHECKING:
    import numpy as np  # to compile, nothing but the architecture is asked here

NO_P2P = "GRAPHC_NO_P2P"
TEST_NBYTES = 4 << 20
RATE_NBYTES = 64 << 20

PROBE_ENTRY = "graphc_probe_copy"
PROBE_PTX = (
    f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry {PROBE_ENTRY}(.param .u64 target, .param .u64 source, .param .u64 count)
{{
  .reg .u64 %t, %s, %n, %i, %step, %a;
  .reg .u32 %x, %y, %z, %w;
  .reg .pred %done;
  ld.param.u64 %t, [target];
  ld.param.u64 %s, [source];
  ld.param.u64 %n, [count];
  mov.u32 %x, %ctaid.x;
  mov.u32 %y, %ntid.x;
  mov.u32 %z, %tid.x;
  mad.lo.u32 %x, %x, %y, %z;
  cvt.u64.u32 %i, %x;
  mov.u32 %z, %nctaid.x;
  mul.wide.u32 %step, %y, %z;
LOOP:
  setp.ge.u64 %done, %i, %n;
  @%done bra END;
  shl.b64 %a, %i, 2;
  add.u64 %a, %a, %s;
  ld.volatile.global.u32 %w, [%a];
  shl.b64 %a, %i, 2;
  add.u64 %a, %a, %t;
  st.volatile.global.u32 [%a], %w;
  add.u64 %i, %i, %step;
  bra LOOP;
END:
  ret;
}}
""".encode()
    + b"\0"
)


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """One direction between two GPUs: what the driver says, and what arrived.

    ``copies``: a copy engine moved the bytes from source to target; ``reads``: a kernel on the
    target read them from the source; ``writes``: a kernel on the source wrote them to the target.
    """

    source: int
    target: int
    says: bool
    copies: bool = False
    reads: bool = False
    writes: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Bytes moved by copy engines, in GB/s; ``both`` is the sum while both directions run."""

    link: str  # "GPU 0 -> host"
    gb_per_s: float


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """All that ``graphc doctor`` shows; fields are plain values, so that they print as JSON."""

    driver: str | None = None  # "13.0"
    nvrtc: str | None = None
    gpus: tuple[DeviceFacts, ...] = ()
    numa_nodes: tuple[int | None, ...] = ()  # of each GPU
    peers: tuple[PeerFacts, ...] = ()
    rates: tuple[LinkRate, ...] = ()
    missing: tuple[str, ...] = field(default=())  # what is not there, and what to do


def gpu_count() -> int:
    """The number of GPUs that can be used; 0 without a driver or its bindings."""
    try:
        return open_driver().device_count()
    except CudaError:
        return 0


def gpu_arch() -> str | None:
    """The architecture of the first GPU ("sm_90a"), or None without one."""
    if not gpu_count():
        return None
    return arch_name(open_driver().device(0).capability)


def arch_name(capability: int) -> str:
    """The architecture for which kernels are compiled: with its own instructions from 9.0 on.

    >>> arch_name(90), arch_name(86)
    ('sm_90a', 'sm_86')
    """
    return f"sm_{capability}{'a' if capability >= 90 else ''}"


def is_p2p_refused() -> bool:
    return os.environ.get(NO_P2P, "") not in ("", "0")


@contextmanager
def current(driver: Driver, context: int) -> Iterator[None]:
    """Work in a context; the thread's own is current again afterwards."""
    driver.push_context(context)
    try:
        yield
    finally:
        driver.pop_context()


# Results of the data tests by driver: what a pair does not change while the process lives.
TESTED: WeakKeyDictionary[Driver, dict[tuple[int, int], PeerFacts]] = WeakKeyDictionary()


def peer_facts(driver: Driver, source: int, target: int) -> PeerFacts:
    """Test one direction with data; each direction once a process."""
    if is_p2p_refused():
        return PeerFacts(source, target, says=False, why=f"refused by {NO_P2P}=1")
    tested = TESTED.setdefault(driver, {})
    if (source, target) not in tested:
        tested[source, target] = try_peer(driver, source, target)
    return tested[source, target]


def try_peer(driver: Driver, source: int, target: int) -> PeerFacts:
    says = driver.can_access_peer(source, target) and driver.can_access_peer(target, source)
    if not says:
        return PeerFacts(source, target, says=False, why="the driver offers no peer access")
    contexts = driver.retain_context(source), driver.retain_context(target)
    try:
        enable_both_ways(driver, *contexts)
        results = Bench(driver, (source, target), contexts).run()
    except CudaError as problem:
        return PeerFacts(source, target, says=True, why=str(problem))
    finally:
        driver.release_context(source)
        driver.release_context(target)
    wrong = [name for name, is_right in results.items() if not is_right]
    why = f"wrong bytes arrived by {', '.join(wrong)}" if wrong else ""
    return PeerFacts(source, target, says=True, **results, why=why)


def enable_both_ways(driver: Driver, first: int, second: int) -> None:
    """Peer access between two contexts; once it is there for one way it is asked for both."""
    if first == second:
        return
    with current(driver, first):
        driver.enable_peer(second)
    with current(driver, second):
        driver.enable_peer(first)


@dataclass(slots=True)
class Bench:
    """Two GPUs with memory and streams: sends patterns from the first to the second."""

    driver: Driver
    ordinals: tuple[int, int]
    contexts: tuple[int, int]
    nbytes: int = TEST_NBYTES

    def run(self) -> dict[str, bool]:
        import numpy as np

        sent = np.random.default_rng(self.ordinals).integers(
            0, 2**32, self.nbytes // 4, dtype=np.uint32
        )
        pointers: list[tuple[int, int]] = []
        try:
            for context in self.contexts:
                with current(self.driver, context):
                    pointers.append((context, self.driver.allocate(self.nbytes)))
            (_, source), (_, target) = pointers
            return self.compare(sent, source, target)
        finally:
            for context, pointer in pointers:
                with current(self.driver, context):
                    self.driver.free(pointer)

    def compare(self, sent: np.ndarray, source: int, target: int) -> dict[str, bool]:
        on_source, on_target = self.contexts
        call = CopyCall(target, source, self.nbytes)
        return {
            "copies": self.arrives(sent, call, on_source, by_kernel=False),
            "reads": self.arrives(~sent, call, on_target, by_kernel=True),
            "writes": self.arrives(sent[::-1].copy(), call, on_source, by_kernel=True),
        }

    def arrives(self, sent: np.ndarray, call: CopyCall, context: int, *, by_kernel: bool) -> bool:
        import numpy as np

        received, wrong = np.empty_like(sent), np.full_like(sent, 0xA5A5A5A5)
        driver = self.driver
        with current(driver, self.contexts[0]):
            driver.write(call.source, sent.ctypes.data, self.nbytes)
        with current(driver, self.contexts[1]):
            driver.write(call.target, wrong.ctypes.data, self.nbytes)
        with current(driver, context):
            move(driver, call, by_kernel=by_kernel)
        with current(driver, self.contexts[1]):
            driver.read(received.ctypes.data, call.target, self.nbytes)
        return bool(np.array_equal(sent, received))


def move(driver: Driver, call: CopyCall, *, by_kernel: bool) -> None:
    """Move bytes in the current context and wait for them."""
    with ExitStack() as held:
        stream = driver.create_stream(0)
        held.callback(driver.destroy_stream, stream)
        if by_kernel:
            library = driver.load_library(PROBE_PTX)
            held.callback(driver.unload_library, library)
            driver.launch(probe_call(driver, library, call), stream)
        else:
            driver.copy(call, stream)
        driver.synchronize(stream)


def probe_call(driver: Driver, library: int, call: CopyCall) -> KernelCall:
    function = driver.function(driver.kernel(library, PROBE_ENTRY))
    arguments = (("Q", call.target), ("Q", call.source), ("Q", call.nbytes // 4))
    return KernelCall(function, (64, 1, 1), (256, 1, 1), 0, arguments)


@lru_cache(maxsize=64)
def numa_node(pci: str) -> int | None:
    """The NUMA node next to a PCI device; None where the system does not say."""
    try:
        node = int(Path(f"/sys/bus/pci/devices/{pci.lower()}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def doctor_facts(*, with_rates: bool = True) -> DoctorFacts:
    """Everything about the machine that graphc depends on; never fails, says what is missing."""
    missing = []
    nvrtc = nvrtc_version()
    if nvrtc is None:
        missing.append("NVRTC (compiles kernels): pip install 'graphc[cuda13]'")
    try:
        driver = open_driver()
        count = driver.device_count()
    except CudaError as problem:
        return DoctorFacts(nvrtc=nvrtc, missing=(str(problem), *missing))
    gpus = tuple(driver.device(ordinal) for ordinal in range(count))
    pairs = [(a.ordinal, b.ordinal) for a in gpus for b in gpus if a != b]
    version = driver.version()
    return DoctorFacts(
        driver=f"{version // 1000}.{version % 1000 // 10}",
        nvrtc=nvrtc,
        gpus=gpus,
        numa_nodes=tuple(numa_node(gpu.pci) for gpu in gpus),
        peers=tuple(peer_facts(driver, source, target) for source, target in pairs),
        rates=link_rates(driver, gpus) if with_rates else (),
        missing=tuple(missing),
    )


def nvrtc_version() -> str | None:
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, ValueError):
        return None
    return f"{major}.{minor}"


def link_rates(driver: Driver, gpus: tuple[DeviceFacts, ...]) -> tuple[LinkRate, ...]:
    """Copy-engine rates: each GPU to and from the host, and every pair each way and both ways."""
    rates = Rates(driver, gpus)
    try:
        rates.prepare()
        return tuple(rates.measure())
    finally:
        rates.release()


@dataclass(slots=True)
class Rates:
    """Buffers and streams of every GPU for timed copies."""

    driver: Driver
    gpus: tuple[DeviceFacts, ...]
    contexts: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        for gpu in self.gpus:
            self.contexts.append(self.driver.retain_context(gpu.ordinal))
            with current(self.driver, self.contexts[-1]):
                self.streams.append(self.driver.create_stream(0))
                self.buffers.append(self.driver.allocate(2 * RATE_NBYTES))
                self.host.append(self.driver.allocate_host(RATE_NBYTES))
                self.driver.fill(FillCall(self.host[-1], 1, 4, RATE_NBYTES // 4), self.streams[-1])
                self.driver.synchronize(self.streams[-1])

    def measure(self) -> Iterator[LinkRate]:
        self.enable_peers()
        for at, gpu in enumerate(self.gpus):
            down = (at, self.host[at], self.buffers[at])
            up = (at, self.buffers[at], self.host[at])
            yield LinkRate(f"GPU {gpu.ordinal} -> host", self.rate(down))
            yield LinkRate(f"host -> GPU {gpu.ordinal}", self.rate(up))
        if len(self.gpus) > 1:
            downs = [(at, self.host[at], self.buffers[at]) for at in range(len(self.gpus))]
            yield LinkRate("all GPUs -> host at once", self.rate(*downs))
        for at, source in enumerate(self.gpus):
            for to, target in enumerate(self.gpus):
                if at != to and peer_facts(self.driver, source.ordinal, target.ordinal).copies:
                    name = f"GPU {source.ordinal} -> GPU {target.ordinal}"
                    yield LinkRate(name, self.rate(self.peer(at, to)))
                    if at < to:
                        both = self.rate(self.peer(at, to), self.peer(to, at))
                        yield LinkRate(f"{name} and back at once", both)

    def enable_peers(self) -> None:
        """For the contexts as they are now: access ends with the last user of a context."""
        for at, source in enumerate(self.gpus):
            for to, target in enumerate(self.gpus):
                if at != to and peer_facts(self.driver, source.ordinal, target.ordinal).copies:
                    enable_both_ways(self.driver, self.contexts[at], self.contexts[to])

    def peer(self, source: int, target: int) -> tuple[int, int, int]:
        return source, self.buffers[target] + RATE_NBYTES, self.buffers[source]

    def rate(self, *copies: tuple[int, int, int]) -> float:
        """GB/s of copies (GPU that issues, target, source) at once; the best of a few rounds."""
        times = []
        for _ in range(4):
            start = perf_counter()
            for at, target, source in copies * 4:
                with current(self.driver, self.contexts[at]):
                    self.driver.copy(CopyCall(target, source, RATE_NBYTES), self.streams[at])
            for at in {each[0] for each in copies}:
                self.driver.synchronize(self.streams[at])
            times.append(perf_counter() - start)
        return round(4 * len(copies) * RATE_NBYTES / min(times) / 1e9, 1)

    def release(self) -> None:
        for at, context in enumerate(self.contexts):
            with current(self.driver, context):
                for pointer in self.host[at : at + 1]:
                    self.driver.free_host(pointer)
                for pointer in self.buffers[at : at + 1]:
                    self.driver.free(pointer)
                for stream in self.streams[at : at + 1]:
                    self.driver.destroy_stream(stream)
            self.driver.release_context(self.gpus[at].ordinal)
