"""One record for each operator call: what a check looks at and a fault reaches into.

Axes: R rows (one request each) · S positions a row · T tokens (R*S, or packed) · D hidden ·
N output features · H query heads · K key/value heads · E head size · L key positions ·
P pages · B page size · V vocabulary · G groups of output features.

The records are mutable on purpose: a fault changes one place, then the checks look.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from tocsin.core.terms import Operator


@dataclass(slots=True, kw_only=True)
class Call:
    """What all operator calls have in common.

    Attributes:
        module: qualified name of the module, empty outside a model.
        depth: index of the transformer layer, None outside one.
        rows: number of requests R that the tokens belong to; None: every token its own row.
    """

    operator: ClassVar[Operator]
    module: str = ""
    depth: int | None = None
    rows: int | None = None


@dataclass(slots=True, kw_only=True)
class TokenizerOutputCall(Call):
    """What a tokenizer handed over: input_ids [R,S] or [T]; mask and positions alike."""

    operator: ClassVar[Operator] = Operator.TOKENIZER_OUTPUT
    input_ids: Tensor
    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    vocab_size: int
    max_length: int | None = None


@dataclass(slots=True, kw_only=True)
class EmbeddingCall(Call):
    """Lookup: input_ids [...] int, weight [V,D], output [...,D]."""

    operator: ClassVar[Operator] = Operator.EMBEDDING
    input_ids: Tensor
    weight: Tensor
    output: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class RopeCall(Call):
    """Rotary embedding: q [R,H,S,E], k [R,K,S,E], cos and sin [R|1,S,E], position_ids [R|1,S].

    Attributes:
        q_out: rotated q; None where only the inputs are known.
        k_out: rotated k.
        inv_freq: [E/2] float64 inverse frequencies taken when the model was known good;
            None: the table is held to its own identities only.
        table_scale: factor on cos and sin (YaRN and its kin scale attention through it).
    """

    operator: ClassVar[Operator] = Operator.ROPE
    q: Tensor
    k: Tensor
    cos: Tensor
    sin: Tensor
    position_ids: Tensor
    q_out: Tensor | None = None
    k_out: Tensor | None = None
    inv_freq: Tensor | None = None
    table_scale: float = 1.0


@dataclass(slots=True, kw_only=True)
class RMSNormCall(Call):
    """RMSNorm: x [...,D], weight [D] (the *effective* factor: Gemma's 1 + w), output [...,D].

    Attributes:
        weight_trusted: copy of the effective weight from when it was known good.
    """

    operator: ClassVar[Operator] = Operator.RMS_NORM
    x: Tensor
    weight: Tensor
    eps: float
    output: Tensor | None = None
    weight_trusted: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class LinearCall(Call):
    """Linear: x [...,D], weight [N,D], bias [N], output [...,N].

    Attributes:
        block_sums: [G,D] float32, sums of `block_size` weight rows each, taken when the weight
            was known good; None: computed from `weight`.
        block_norms: [G] float32, Frobenius norms of the same blocks.
        bias_sums: [G] float32 sums of the bias in the same blocks.
        block_weights: [block_size] float32, factor of each feature of a block in `block_sums`
            and `bias_sums`; None: all 1.
    """

    operator: ClassVar[Operator] = Operator.LINEAR
    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    output: Tensor | None = None
    block_sums: Tensor | None = None
    block_norms: Tensor | None = None
    bias_sums: Tensor | None = None
    block_weights: Tensor | None = None
    block_size: int = 128


@dataclass(slots=True, kw_only=True)
class SwiGLUCall(Call):
    """Gated activation: gate and up [...,N], output = act(gate) * up.

    Attributes:
        activation: "silu" (SwiGLU), "gelu" or "gelu_tanh" (Gemma's GeGLU).
    """

    operator: ClassVar[Operator] = Operator.SWIGLU
    gate: Tensor
    up: Tensor
    output: Tensor | None = None
    activation: str = "silu"


@dataclass(slots=True, kw_only=True)
class ResidualCall(Call):
    """Residual add: x and delta [...,D], output [...,D] = x + delta."""

    operator: ClassVar[Operator] = Operator.RESIDUAL
    x: Tensor
    delta: Tensor
    output: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class AttentionCall(Call):
    """Attention: q [R,H,S,E], k and v [R,K,L,E], output [R,H,S,E], lse [R,H,S].

    Attributes:
        mask: bool (True = may attend) or additive float, broadcastable to [R,H,S,L].
        causal: bottom-right aligned causal mask on top of `mask`.
        scale: None means E ** -0.5.
        backend: name of the backend that ran, empty when unknown.
        softcap: Gemma 2's tanh cap on the scores, None without.
        key_sums: [R,K,E] float64 sum of all keys of a row, from position 0 on, taken when they
            were written; like the others below for a single query a row only, or None.
        key_reach: [R,K] float32 largest norm of those keys.
        value_sums: [R,K,L] float32 sum over the features of each value, as written; anything
            beyond a row's length.
        value_norms: [R,K,L] float32 norm of each value, likewise.
        value_low: [R,K,E] float32 smallest of the values as written; value_high: the largest.
    """

    operator: ClassVar[Operator] = Operator.ATTENTION
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    causal: bool = False
    scale: float | None = None
    output: Tensor | None = None
    lse: Tensor | None = None
    backend: str = ""
    softcap: float | None = None
    key_sums: Tensor | None = None
    key_reach: Tensor | None = None
    value_sums: Tensor | None = None
    value_norms: Tensor | None = None
    value_low: Tensor | None = None
    value_high: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class VarlenAttentionCall(Call):
    """Packed attention: q [Tq,H,E], k and v [Tk,K,E] or qkv [T,3,H,E]; cu_seqlens_* [R+1] int32.

    The tensors may be None when only the metadata is known (before a launch); totals then come
    from `total_q` and `total_k`.

    Attributes:
        lengths_q_expected: [R] int32 or int64, queries of each row as the ledger has them;
            lengths_k_expected: keys, likewise. None: unknown.
    """

    operator: ClassVar[Operator] = Operator.FLASH_ATTN_VARLEN
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    qkv: Tensor | None = None
    output: Tensor | None = None
    total_q: int | None = None
    total_k: int | None = None
    lengths_q_expected: Tensor | None = None
    lengths_k_expected: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class KVUpdateCall(Call):
    """Append to a paged cache: key_cache and value_cache [P,B,K,E], new_key and new_value [T,K,E].

    Attributes:
        slot_mapping: [T] flat slot (page * B + offset) of each token, -1 for a padding token.
        block_table: [R,n] page of each block of a row, -1 beyond the end.
        seq_lens: [R] committed length of a row *after* this update; 0 for an idle row.
        position_ids: [T] position of each token.
        owners: [P] row index that owns each page, -1 where shared or free; None: unknown.
        token_rows: [T] row of each token; None: T/R tokens a row, in order.
    """

    operator: ClassVar[Operator] = Operator.KV_UPDATE
    key_cache: Tensor
    value_cache: Tensor
    new_key: Tensor
    new_value: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    seq_lens: Tensor
    position_ids: Tensor
    owners: Tensor | None = None
    token_rows: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class KVReadCall(Call):
    """What the block tables promise against what the pages hold, before a step reads them.

    One entry for each (row, block) in use; all [n] int64 unless said.

    Attributes:
        entry_rows: row of each entry.
        pages: page of each entry.
        sums: content sums as read now, [n,m]; sums_expected: as recorded when written.
        owners, epochs, first_positions, lengths: the tags of the pages.
        owners_expected, epochs_expected, first_positions_expected, lengths_expected: what the
            rows' tables say; an owner of -1 in a tag marks a page shared through the prefix index.
        prefixes: [n,L] all tokens up to the end of a shared page as it was written with, -1 beyond
            them; prefixes_expected: of its row's own prompt. None where no row has just taken
            pages from the prefix index.
    """

    operator: ClassVar[Operator] = Operator.KV_READ
    entry_rows: Tensor
    pages: Tensor
    sums: Tensor
    sums_expected: Tensor
    owners: Tensor
    owners_expected: Tensor
    epochs: Tensor
    epochs_expected: Tensor
    first_positions: Tensor
    first_positions_expected: Tensor
    lengths: Tensor
    lengths_expected: Tensor
    prefixes: Tensor | None = None
    prefixes_expected: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class BatchCall(Call):
    """The input of one engine step, before anything is launched (host tensors).

    Attributes:
        input_ids: [T] token of each position; input_ids_expected: [T] the ledger's.
        position_ids: [T]; position_ids_expected: [T] the ledger's.
        vocab_size: V.
        request_ids: id of each row, empty for an idle row.
        block_table: [R,n] int64, the page of each block of a row as the step will use it, -1
            beyond the end; None where the engine has no pages.
    """

    operator: ClassVar[Operator] = Operator.BATCH
    input_ids: Tensor
    input_ids_expected: Tensor
    position_ids: Tensor
    position_ids_expected: Tensor
    vocab_size: int
    request_ids: tuple[str, ...] = ()
    block_table: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class LogitsCall(Call):
    """Logits [...,V], from hidden [...,D] and weight [V,D].

    Attributes:
        weight_norm_max: largest row norm of the weight when it was known good.
        weight_row_sums: [V] float32 sum of each row of the weight when it was known good.
        softcap: Gemma 2's tanh cap on the logits, None without.
    """

    operator: ClassVar[Operator] = Operator.LOGITS
    logits: Tensor
    hidden: Tensor | None = None
    weight: Tensor | None = None
    weight_norm_max: Tensor | None = None
    weight_row_sums: Tensor | None = None
    softcap: float | None = None


@dataclass(slots=True, kw_only=True)
class LogitProcessorCall(Call):
    """A processor's step: before and after [R,V]; allowed [R,V] bool, True = may be sampled."""

    operator: ClassVar[Operator] = Operator.LOGIT_PROCESSOR
    before: Tensor
    after: Tensor
    allowed: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class SamplerCall(Call):
    """Sampling: probs [R,V] after all filters, token_ids [R].

    Attributes:
        temperature: 0 means greedy; None: unknown. A float or one value a row, likewise below.
        draws: [R] float64 in [0, 1), where in the distribution function of `probs` the draw of a
            row fell; of no meaning for a greedy row. None: not known.
    """

    operator: ClassVar[Operator] = Operator.SAMPLER
    probs: Tensor
    token_ids: Tensor | None = None
    temperature: float | Tensor | None = None
    top_p: float | Tensor | None = None
    top_k: int | Tensor | None = None
    draws: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class AllReduceCall(Call):
    """Sum over ranks: partials [ranks,...] (a stacked tensor or a sequence), output [...]."""

    operator: ClassVar[Operator] = Operator.ALL_REDUCE
    partials: Tensor
    output: Tensor


@dataclass(slots=True, kw_only=True)
class StructuredOutputCall(Call):
    """A finished answer that promised to follow a JSON schema (Draft 2020-12)."""

    operator: ClassVar[Operator] = Operator.STRUCTURED_OUTPUT
    text: str
    json_schema: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class WeightCall(Call):
    """Weight sums read now [n] against those taken when the model was loaded [n] (int64)."""

    operator: ClassVar[Operator] = Operator.WEIGHT
    sums: Tensor
    sums_expected: Tensor


@dataclass(slots=True, kw_only=True)
class DeviceMemoryCall(Call):
    """A reading of free memory, bytes, taken off the hot path."""

    operator: ClassVar[Operator] = Operator.DEVICE_MEMORY
    free_bytes: int
    total_bytes: int
    device: str = "cpu"
