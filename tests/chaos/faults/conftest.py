"""A worker without an engine: pages, a model and the calls of one decode step, for the faults."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from tocsin.chaos import lease
from tocsin.chaos.contract import faults
from tocsin.chaos.lease import Armoury
from tocsin.core.calls import (
    AttentionCall,
    BatchCall,
    Call,
    DeviceMemoryCall,
    KVUpdateCall,
    LinearCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    VarlenAttentionCall,
)
from tocsin.core.clock import ManualClock, OffsetClock
from tocsin.core.errors import BackendError
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.protocols import PageTag
from tocsin.core.seams import Seams
from tocsin.core.terms import Phase

DEPTH, PAGE, HEADS, HEAD_SIZE, VOCABULARY = 2, 4, 2, 4, 50
HIDDEN, KEYS, EPS = 6, 8, 1e-6
NORMS = ("input_layernorm", "post_attention_layernorm")
GIB = 1 << 30


class Pages:
    """A page pool [12, 2, 2, 4, 8]: two requests in the step, one beside it, a freed page, null."""

    page_size = PAGE

    def __init__(self) -> None:
        self.data = torch.randn(12, DEPTH, 2, PAGE, HEADS * HEAD_SIZE)
        self.tables = {"a": (3, 5), "b": (7,), "beside": (1, 2, 6, 8)}
        self.tags = {
            3: PageTag("shared", 1, 0, 4, ("a",)),
            4: PageTag("shared", 1, 0, 4),
            5: PageTag("a", 2, 4, 2, ("a",)),
            7: PageTag("b", 1, 0, 1, ("b",)),
            9: PageTag("", 4, 0, 0),
        }
        self.prefixes = {3: (1, 2, 3, 4), 4: (5, 6, 7, 8)}
        self.prefix_index = {tokens: page for page, tokens in self.prefixes.items()}
        self.limit: int | None = None
        self.sums = self._sums()

    def tag(self, page: int) -> PageTag:
        return self.tags.get(page, PageTag("", 0, 0, 0))

    def verify(self, pages: Sequence[int]) -> tuple[int, ...]:
        now = self._sums()
        return tuple(page for page in pages if not torch.equal(now[page], self.sums[page]))

    def zero(self, pages: Sequence[int]) -> None:
        self.data[list(pages)] = 0.0
        self.sums[list(pages)] = 0

    def table(self, request_id: str) -> tuple[int, ...]:
        return self.tables.get(request_id, ())

    def running(self) -> tuple[str, ...]:
        return tuple(self.tables)

    def miscount(self, page: int) -> None:
        self.tags[page] = replace(self.tags[page], owner="", length=0, holders=())

    def recount(self, page: int, tag: PageTag) -> None:
        if not self.tags[page].owner and self.tags[page].epoch == tag.epoch:
            self.tags[page] = tag

    def prefix(self, page: int) -> tuple[int, ...]:
        return self.prefixes.get(page, ())

    def mislay(self, request_id: str, count: int) -> tuple[int, ...]:
        free = [page for page in range(1, 12) if not self.tag(page).owner][:count]
        for page in free:
            self.tags[page] = replace(self.tag(page), owner=request_id, holders=(request_id,))
        self.tables[request_id] = tuple(free)
        return self.tables[request_id]

    def release(self, request_id: str) -> None:
        for page in self.tables.pop(request_id, ()):
            self.tags[page] = replace(self.tag(page), owner="", length=0, holders=())

    def write(self, slot: int, depth: int, row: Tensor) -> None:
        """Store one token's K and V [2, K*E] and record their sums, from the new row."""
        page, offset = divmod(slot, PAGE)
        self.data[page, depth, :, offset] = row
        self.sums[page, depth, :, offset] = row.contiguous().view(torch.int64).sum(-1)

    def _sums(self) -> Tensor:
        return self.data.view(torch.int64).sum(-1)


class Rotary(nn.Module):
    """Holds the frequency table, as Transformers' rotary modules do."""

    def __init__(self) -> None:
        super().__init__()
        frequencies = 10000.0 ** -(torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.register_buffer("original_inv_freq", frequencies.clone(), persistent=False)


class Model(nn.Module):
    """Names as in a decoder: `layers.0.mlp.down_proj.weight` and a rotary table."""

    def __init__(self) -> None:
        super().__init__()
        layers = []
        for _ in range(DEPTH):
            mlp = nn.ModuleDict({"down_proj": nn.Linear(HIDDEN, 8, bias=False)})
            norms = {name: nn.RMSNorm(HIDDEN, eps=EPS) for name in NORMS}
            layers.append(nn.ModuleDict({"mlp": mlp, **norms}))
        self.layers = nn.ModuleList(layers)
        self.rotary_emb = Rotary()


@dataclass
class Worker:
    """What an engine offers to a fault, one decode step at a time.

    Three slots: request a at position 6, an idle one, request b at position 1.
    """

    seams: Seams = field(default_factory=Seams)
    pages: Pages = field(default_factory=Pages)
    model: Model = field(default_factory=Model)
    clock: ManualClock = field(default_factory=ManualClock)
    reports: list[OrderStatus] = field(default_factory=list)
    step: int = 0
    request_ids: tuple[str, ...] = ("a", "", "b")
    backend: str = "flash"
    calls: list[Call] = field(default_factory=list)
    errors: list[BackendError] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = OffsetClock(self.clock)
        self.armoury = Armoury(self.model, self.pages, self.seams, clock, self.reports.append)

    def arm(
        self, kind: str, /, after_step: int = 0, ttl_s: float = 10.0, **params: object
    ) -> Order:
        order = Order(f"{kind}@0", kind, 7, after_step, ttl_s, dict(params))
        self.armoury.arm(order)
        return order

    def status(self) -> OrderStatus:
        return self.armoury.statuses()[-1]

    def decode(self) -> None:
        """Emit the calls of one step, in the engine's order; the calls stay in `calls`."""
        self.armoury.tick(self.step)
        self.step += 1
        self.calls = []
        try:
            self._emit_all()
        except BackendError as error:
            self.errors.append(error)

    def call(self, kind: type[Call]) -> Call:
        return next(call for call in self.calls if isinstance(call, kind))

    def _emit_all(self) -> None:
        live = [bool(request) for request in self.request_ids]
        rows = len(live)
        positions = torch.tensor([6, 0, 1])
        tokens = torch.tensor([11, 0, 22])
        table = self._block_table()
        self._emit(
            BatchCall(
                input_ids=tokens,
                input_ids_expected=tokens.clone(),
                position_ids=positions,
                position_ids_expected=positions.clone(),
                vocab_size=VOCABULARY,
                request_ids=self.request_ids,
                block_table=table,
            ),
            Phase.BEFORE,
        )
        self._emit(
            VarlenAttentionCall(
                cu_seqlens_q=torch.arange(rows + 1, dtype=torch.int32),
                cu_seqlens_k=torch.tensor([0, 7, 8, 10], dtype=torch.int32),
                max_seqlen_q=1,
                max_seqlen_k=7,
                total_q=rows,
                total_k=10,
            ),
            Phase.BEFORE,
        )
        self._emit(DeviceMemoryCall(free_bytes=8 * GIB, total_bytes=16 * GIB), Phase.BEFORE)
        cos, sin = self._rotation()
        for depth in range(DEPTH):
            self._layer(depth, rows, cos, sin)
        logits = torch.randn(rows, 1, VOCABULARY)
        self._emit(LogitsCall(module="lm_head", rows=rows, logits=logits))

    def _rotation(self) -> tuple[Tensor, Tensor]:
        """cos and sin [3, 1, E], made once a step for all layers."""
        angle = torch.tensor([[6.0], [0.0], [1.0]])[..., None] * self.model.rotary_emb.inv_freq
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()

    def _block_table(self) -> Tensor:
        """[3, 2] pages of each row as its request's table has them; idle rows: the null page."""
        tables = [self.pages.table(request) or (0,) for request in self.request_ids]
        return torch.tensor([[*table, -1][:2] for table in tables])

    def _layer(self, depth: int, rows: int, cos: Tensor, sin: Tensor) -> None:
        self._norm(depth, rows, NORMS[0])
        turned = torch.randn(4, rows, HEADS, 1, HEAD_SIZE)
        self._emit(
            RopeCall(
                depth=depth,
                rows=rows,
                q=turned[0],
                k=turned[1],
                cos=cos,
                sin=sin,
                position_ids=torch.tensor([[6], [0], [1]]),
                q_out=turned[2],
                k_out=turned[3],
            )
        )
        slots = torch.tensor([5 * PAGE + 2, -1, 7 * PAGE + 1])
        new = torch.randn(2, rows, HEADS, HEAD_SIZE)
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                self.pages.write(slot, depth, new[:, row].reshape(2, -1))
        cache = self.pages.data[:, depth].unflatten(-1, (HEADS, HEAD_SIZE))
        self._emit(
            KVUpdateCall(
                depth=depth,
                rows=rows,
                key_cache=cache[:, 0],
                value_cache=cache[:, 1],
                new_key=new[0],
                new_value=new[1],
                slot_mapping=slots,
                block_table=self._block_table(),
                seq_lens=torch.tensor([7, 0, 2]),
                position_ids=torch.tensor([6, 0, 1]),
            )
        )
        gathered = torch.randn(2, rows, HEADS, KEYS, HEAD_SIZE)
        seen = torch.arange(KEYS) < torch.tensor([7, 1, 2])[:, None]
        self._emit(
            AttentionCall(
                depth=depth,
                q=torch.randn(rows, HEADS, 1, HEAD_SIZE),
                k=gathered[0],
                v=gathered[1],
                mask=seen[:, None, None],
                backend=self.backend,
            ),
            Phase.BEFORE,
        )
        self._norm(depth, rows, NORMS[1])
        linear = self.model.layers[depth]["mlp"]["down_proj"]
        x = torch.randn(rows, 1, HIDDEN)
        with torch.no_grad():
            output = linear(x)
        name = f"layers.{depth}.mlp.down_proj"
        self._emit(
            LinearCall(
                module=name, depth=depth, rows=rows, x=x, weight=linear.weight, output=output
            )
        )
        self._emit(ResidualCall(depth=depth, x=output, delta=output, output=output + output))

    def _norm(self, depth: int, rows: int, name: str) -> None:
        norm, x = self.model.layers[depth][name], torch.randn(rows, 1, HIDDEN)
        with torch.no_grad():
            output = norm(x)
        module = f"layers.{depth}.{name}"
        self._emit(
            RMSNormCall(
                module=module,
                depth=depth,
                rows=rows,
                x=x,
                weight=norm.weight,
                eps=EPS,
                output=output,
            )
        )

    def _emit(self, call: Call, phase: Phase = Phase.AFTER) -> None:
        self.calls.append(call)
        self.seams.emit(call, phase)


@pytest.fixture
def worker() -> Worker:
    """A worker whose engine has not begun its first step."""
    return Worker()


@pytest.fixture
def new_worker() -> Callable[[], Worker]:
    """Makes further workers, all in the same state for the same generator state."""
    return Worker


@pytest.fixture
def substitute(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, object], None]:
    """Replaces the injector of one declared fault, as the armoury sees it."""

    def put(kind: str, inject: object) -> None:
        catalogue = dict(faults())
        catalogue[kind] = replace(catalogue[kind], inject=inject)
        monkeypatch.setattr(lease, "faults", lambda: catalogue)

    return put
