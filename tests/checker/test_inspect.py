"""`tocsin.inspect`: one operator call, by name, without a model."""

from typing import Any

import pytest
import torch
from torch import Tensor

import tocsin
from tests.checker.calls import DTYPES, generator
from tests.checker.changes import fresh
from tests.checker.faulty import FAULTS
from tests.checker.valid import VALID
from tocsin.checker.inspect import RECORDS, fields_of
from tocsin.core.calls import Call
from tocsin.core.errors import ContractError
from tocsin.core.terms import Layer, Operator

DESIGN = {
    "tokenizer_output": "input_ids attention_mask position_ids vocab_size max_length",
    "embedding": "input_ids weight output",
    "rope": "q k cos sin position_ids q_out k_out",
    "rms_norm": "x weight eps output",
    "linear": "x weight bias output",
    "swiglu": "gate up output",
    "attention": "q k v mask causal scale output lse",
    "flash_attn_varlen": "q k v qkv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k output",
    "kv_update": "key_cache value_cache new_key new_value slot_mapping block_table seq_lens "
    "position_ids owners",
    "logits": "logits hidden weight",
    "logit_processor": "before after allowed",
    "sampler": "probs token_ids temperature top_p top_k",
    "all_reduce": "partials output",
    "structured_output": "text json_schema",
}


def given(call: Call) -> dict[str, Any]:
    """The fields of a call as keyword arguments."""
    return {
        name: value for name in fields_of(type(call)) if (value := getattr(call, name)) is not None
    }


def test_knows_the_operators_and_fields_of_the_public_interface() -> None:
    """What other people's code passes by name is accepted by name."""
    assert [str(operator) for operator in RECORDS] == list(DESIGN)
    for operator, names in DESIGN.items():
        assert set(names.split()) <= set(fields_of(RECORDS[Operator(operator)]))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("operator", RECORDS, ids=str)
def test_finds_nothing_in_a_valid_call(operator: Operator, dtype: torch.dtype) -> None:
    """Every valid call is ok, and at least one check stands behind the word."""
    for name, maker in VALID[operator].items():
        verdict = tocsin.inspect(operator, **given(maker(generator(), dtype)))
        assert verdict.ok, (name, verdict.findings)
        assert not verdict.vacuous, name


@pytest.mark.parametrize("operator", RECORDS, ids=str)
def test_finds_nothing_in_valid_inputs_without_their_output(operator: Operator) -> None:
    """Inputs alone are enough to look at; checks that need the output are counted as not run."""
    for name, maker in VALID[operator].items():
        fields = given(maker(generator(), torch.float32))
        whole = tocsin.inspect(operator, **fields)
        inputs = {k: v for k, v in fields.items() if k not in ("output", "q_out", "k_out", "lse")}
        if operator is Operator.ALL_REDUCE:
            inputs = fields
        verdict = tocsin.inspect(operator, **inputs)
        assert verdict.ok, (name, verdict.findings)
        assert verdict.checks_run <= whole.checks_run


@pytest.mark.parametrize(
    ("check_id", "fault_name"),
    [
        (check_id, name)
        for check_id, faults in FAULTS.items()
        for name, ((operator, _), _) in faults.items()
        if operator in RECORDS
    ],
)
def test_reports_each_fault_under_the_check_that_names_it(check_id: str, fault_name: str) -> None:
    """A finding carries id, layer, priority, ratio, impact and a message that ends in the id."""
    (operator, name), fault = FAULTS[check_id][fault_name]
    call = fresh(VALID[operator][name](generator(3), torch.float32))
    fault(call)
    try:
        verdict = tocsin.inspect(operator, **given(call))
    except ContractError:
        assert fault_name in ("longest negative",)
        return
    found = {finding.check: finding for finding in verdict.findings}
    assert check_id in found
    assert len(found) == len(verdict.findings)
    finding = found[check_id]
    assert not finding.ratio <= 1.0
    assert finding.layer is Layer(check_id.partition(".")[0])
    assert finding.operator is operator
    assert finding.message.startswith(f"{operator}: ")
    assert finding.message.endswith(f"[{check_id}]")
    assert finding.impact


def test_counts_only_the_checks_that_had_something_to_look_at() -> None:
    """A check that needs the output does not stand behind a verdict on inputs alone."""
    x, weight = torch.randn(2, 4), torch.randn(3, 4)
    assert tocsin.inspect("linear", x=x, weight=weight, output=x @ weight.T).checks_run == 3
    assert tocsin.inspect("linear", x=x, weight=weight).checks_run == 2
    nobody = torch.zeros(0, 4)
    empty = tocsin.inspect("linear", x=nobody, weight=weight, output=nobody @ weight.T)
    assert empty.checks_run == 2  # its form, and its weight instead of an output


def test_names_the_rows_that_alarm() -> None:
    """Only the request with the wrong number is named, whatever its position in the row."""
    x, weight = torch.randn(4, 3, 32), torch.randn(48, 32)
    output = x @ weight.T
    output[2, 1, 5] += 1.0
    finding = tocsin.inspect("linear", x=x, weight=weight, output=output).findings[0]
    assert finding.check == "numerical.linear_checksum"
    assert finding.rows == (2,)


def test_takes_any_number_of_batch_axes() -> None:
    """Leading axes are flattened where a check wants exactly one."""
    q = torch.randn(2, 3, 4, 5, 8)
    k, v = torch.randn(2, 3, 2, 5, 8), torch.randn(2, 3, 2, 5, 8)
    output = torch.nn.functional.scaled_dot_product_attention(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), enable_gqa=True
    ).unflatten(0, (2, 3))
    assert tocsin.inspect("attention", q=q, k=k, v=v, output=output).ok
    one = tocsin.inspect("attention", q=q[0, 0], k=k[0, 0], v=v[0, 0], output=output[0, 0])
    assert one.ok
    assert one.checks_run >= 5
    output[1, 2, 0, 3, 1] += 1.0
    assert tocsin.inspect("attention", q=q, k=k, v=v, output=output).findings[0].rows == (5,)


def test_takes_lists_and_numbers_where_tensors_are_expected() -> None:
    """What a person types at a prompt is understood."""
    verdict = tocsin.inspect(
        "tokenizer_output", input_ids=[[5, 6, 7]], attention_mask=[[0, 1, 1]], vocab_size=8
    )
    assert verdict.ok
    assert not tocsin.inspect("tokenizer_output", input_ids=[[5, 8]], vocab_size=8).ok
    partials = [torch.ones(4), torch.ones(4)]
    assert tocsin.inspect("all_reduce", partials=partials, output=torch.full((4,), 2.0)).ok
    assert not tocsin.inspect("all_reduce", partials=partials, output=torch.ones(4)).ok


@pytest.mark.parametrize(
    "ids", [[[1, 2], [3]], "text", [[0.5, 1.5]], [["a"]], torch.ones(2, 2), {"ids": 1}], ids=repr
)
def test_a_malformed_tensor_is_a_finding(ids: Any) -> None:
    """Ragged rows, words, fractions: an alarm that says so in words, never an exception."""
    verdict = tocsin.inspect("tokenizer_output", input_ids=ids, vocab_size=100)
    found = [finding for finding in verdict.findings if finding.check == "memory.tensor_contract"]
    assert found
    assert "input_ids" in found[0].message


@pytest.mark.parametrize(
    "fields",
    [
        {"input_ids": []},
        {"input_ids": torch.zeros(0, 5, dtype=torch.int64)},
        {"input_ids": torch.zeros(2, 0, dtype=torch.int64)},
    ],
    ids=("list", "no rows", "no positions"),
)
def test_an_empty_batch_is_a_defined_answer(fields: dict[str, Any]) -> None:
    """Nothing to read is no fault: the caller gets a verdict without findings."""
    if isinstance(fields["input_ids"], list):
        fields = {"input_ids": torch.tensor([], dtype=torch.int64)}
    assert tocsin.inspect("tokenizer_output", vocab_size=100, **fields).ok


def test_an_empty_sequence_of_any_layer_is_a_defined_answer() -> None:
    """No tokens, no alarm: for every operator of a layer."""
    none, weight = torch.zeros(0, 8), torch.randn(8, 8)
    assert tocsin.inspect("linear", x=none, weight=weight, output=none).ok
    assert tocsin.inspect("rms_norm", x=none, weight=weight[0], eps=1e-6, output=none).ok
    assert tocsin.inspect("swiglu", gate=none, up=none, output=none).ok
    assert tocsin.inspect("logits", logits=none).ok
    heads = torch.zeros(2, 4, 0, 8)
    assert tocsin.inspect("attention", q=heads, k=heads, v=heads, output=heads).ok
    nobody = torch.zeros(1, dtype=torch.int32)
    assert tocsin.inspect(
        "flash_attn_varlen",
        qkv=torch.zeros(0, 3, 2, 8),
        cu_seqlens_q=nobody,
        cu_seqlens_k=nobody,
        max_seqlen_q=0,
        max_seqlen_k=0,
    ).ok


def test_an_unknown_operator_is_an_error_that_lists_the_known_ones() -> None:
    """A typo does not look like a clean verdict."""
    with pytest.raises(ValueError, match=r"'rmsnorm', known are .*rms_norm.*structured_output"):
        tocsin.inspect("rmsnorm", x=torch.ones(2, 2))


def test_operators_of_an_engine_cannot_be_looked_at_alone() -> None:
    """`batch` and `kv_read` need a ledger, which only an engine has."""
    with pytest.raises(ContractError, match="batch"):
        tocsin.inspect("batch")


def test_an_unknown_field_is_an_error_that_lists_the_known_ones() -> None:
    """A misspelt argument is never ignored."""
    with pytest.raises(ValueError, match=r"wieght, known are x, weight, eps, output"):
        tocsin.inspect("rms_norm", x=torch.ones(2, 2), wieght=torch.ones(2), eps=1e-6)


@pytest.mark.parametrize("field", ["module", "depth", "rows"])
def test_fields_of_an_engine_are_unknown(field: str) -> None:
    """Where a call stands in a model is not for the caller to say."""
    with pytest.raises(ContractError, match="known are"):
        tocsin.inspect("rms_norm", x=torch.ones(2, 2), weight=torch.ones(2), eps=1.0, **{field: 1})


def test_a_missing_field_is_an_error_that_names_it() -> None:
    """What cannot be left out is said."""
    with pytest.raises(ValueError, match="found no weight, eps"):
        tocsin.inspect("rms_norm", x=torch.ones(2, 2))
    cu = torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(ValueError, match="found no q, k, v"):
        tocsin.inspect(
            "flash_attn_varlen", cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=2, max_seqlen_k=2
        )


@pytest.mark.parametrize(
    ("operator", "fields"),
    [
        ("rms_norm", {"x": torch.ones(2, 2), "weight": torch.ones(2), "eps": "small"}),
        ("tokenizer_output", {"input_ids": [[1]], "vocab_size": 3.5}),
        ("structured_output", {"text": 3, "json_schema": {}}),
        ("structured_output", {"text": "{}", "json_schema": "{}"}),
    ],
    ids=("eps", "vocab_size", "text", "json_schema"),
)
def test_an_argument_that_is_no_tensor_must_be_of_its_kind(
    operator: str, fields: dict[str, Any]
) -> None:
    """A number is a number and a text is a text: anything else is the caller's error."""
    with pytest.raises(ContractError, match="expected a"):
        tocsin.inspect(operator, **fields)


def test_a_tensor_of_one_number_serves_as_a_number() -> None:
    """`max_seqlen` often comes out of a tensor."""
    cu = torch.tensor([0, 3, 5], dtype=torch.int32)
    longest = cu.diff().amax()
    verdict = tocsin.inspect(
        "flash_attn_varlen",
        qkv=torch.randn(5, 3, 2, 8),
        cu_seqlens_q=cu,
        cu_seqlens_k=cu,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
    )
    assert verdict.ok


def test_works_under_autograd_and_leaves_the_graph_alone() -> None:
    """Looking at a training step neither fails nor adds to its graph."""
    x = torch.randn(3, 8, requires_grad=True)
    weight = torch.randn(4, 8, requires_grad=True)
    output = x @ weight.T
    assert tocsin.inspect("linear", x=x, weight=weight, output=output).ok
    output.sum().backward()
    assert isinstance(x.grad, Tensor)


def test_the_first_finding_is_numerical() -> None:
    """Findings come in the order of the layers, so that the first names the nearest cause."""
    verdict = tocsin.inspect("linear", x=torch.ones(2, 3), weight=torch.ones(4, 5))
    layers = [finding.layer for finding in verdict.findings]
    assert layers == sorted(layers, key=list(Layer).index)
    assert "memory.tensor_contract" in {finding.check for finding in verdict.findings}
    assert "x has 3 columns" in verdict.findings[-1].message
