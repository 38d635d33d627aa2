"""Whether keys and values have one shape, and heads that the queries can share."""

from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import alarm, clear, nothing
from tocsin.checker.structure import problem
from tocsin.core.calls import AttentionCall, KVUpdateCall, VarlenAttentionCall
from tocsin.core.terms import Priority, Profile


@check(
    "state.kv_shape",
    priority=Priority.P0,
    impact="queries are paired with keys of another head or position: wrong text or a crash",
    source="ai-dynamo/dynamo#14416: a cache written in one layout is read in another",
    profile=Profile.GUARD,
    remedy="rebuild the cache in the layout that the model's configuration asks for",
)
def kv_shape(call: AttentionCall | VarlenAttentionCall | KVUpdateCall) -> Tensor:
    """Infinity where K and V differ in shape, or the query heads are no multiple of theirs.

    Args:
        call: k and v as attention reads them, or as the cache takes them; heads before the head
            size, [R,K,L,E] or [T,K,E].

    Returns:
        ratio, [1], float32, 0 or infinity.
    """
    if problem(call):
        return alarm(call)
    if isinstance(call, KVUpdateCall):
        pairs = [(call.new_key, call.new_value), (call.key_cache, call.value_cache)]
    elif call.k is None or call.v is None:
        return nothing(call)
    else:
        pairs = [(call.k, call.v)]
    return clear(call) if all(k.shape == v.shape for k, v in pairs) else alarm(call)
