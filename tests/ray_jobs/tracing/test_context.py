"""Trace context is W3C's, the head decides alike everywhere, names are OpenTelemetry's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.core.errors import SpecError
from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.context import HeadSampler, TraceContext, from_headers, ids_of, parse
from tocsin.ray_jobs.tracing.settings import RATIO, TraceSettings

IDS = st.integers(1, 2**128 - 1)
SPAN_IDS = st.integers(1, 2**64 - 1)


@given(IDS, SPAN_IDS, st.booleans())
def test_a_context_comes_back_from_its_header(trace_id: int, span_id: int, sampled: bool) -> None:
    """All ids, small ones with leading zeros included."""
    context = TraceContext(trace_id, span_id, sampled)
    assert parse(context.header) == context
    assert ids_of(context.header) == (f"{trace_id:032x}", f"{span_id:016x}")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "0" * 16 + "-01",
        "ff-" + "1" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 31 + "-" + "1" * 16 + "-01",
        "00-" + "A" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "1" * 16 + "-01-more",
        "x" * 10_000,
    ],
)
def test_what_w3c_calls_invalid_is_no_context(header: str) -> None:
    """A caller's mistake begins a new trace and breaks nothing."""
    assert from_headers({"traceparent": header}) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    """So says the recommendation."""
    header = "01-" + "1" * 32 + "-" + "2" * 16 + "-01-what-comes-later"
    assert parse(header) == TraceContext(int("1" * 32, 16), int("2" * 16, 16), True)


@given(IDS, SPAN_IDS, st.booleans(), st.floats(0.0, 1.0))
def test_a_callers_decision_stands(trace: int, span: int, sampled: bool, ratio: float) -> None:
    """Parent-based: whatever the ratio here."""
    begun = HeadSampler(ratio).begin(TraceContext(trace, span, sampled))
    assert (begun.trace_id, begun.sampled) == (trace, sampled)
    assert begun.span_id not in (0, span)


def test_about_the_share_that_was_asked_for_is_sampled() -> None:
    """A hundredth of new traces; with 0 none, with 1 all."""
    sampled = sum(HeadSampler(0.01).begin(None).sampled for _ in range(20_000))
    assert 120 <= sampled <= 280  # five standard deviations
    assert not any(HeadSampler(0.0).begin(None).sampled for _ in range(100))
    assert all(HeadSampler(1.0).begin(None).sampled for _ in range(100))


def test_settings_are_opentelemetrys_own_variables() -> None:
    """One per cent unless told otherwise."""
    assert TraceSettings.from_environment({}) == TraceSettings(True, RATIO, False)
    found = TraceSettings.from_environment(
        {
            "OTEL_SDK_DISABLED": "True",
            "OTEL_TRACES_SAMPLER_ARG": "0.5",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        }
    )
    assert found == TraceSettings(False, 0.5, True)


@pytest.mark.parametrize("text", ["2", "-0.1", "nan", "many"])
def test_a_ratio_that_is_none_is_refused_with_a_word(text: str) -> None:
    """At the start, not at the first request."""
    with pytest.raises(SpecError, match="OTEL_TRACES_SAMPLER_ARG"):
        TraceSettings.from_environment({"OTEL_TRACES_SAMPLER_ARG": text})


def test_copied_names_are_those_that_are_installed() -> None:
    """The package calls them unstable, so they are copied; a copy that has aged is found here."""
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
    from opentelemetry.semconv.attributes import error_attributes, http_attributes

    theirs = {
        value
        for module in (gen_ai, error_attributes, http_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    ours = {value for name, value in vars(names).items() if name.isupper()}
    standard = {one for one in ours if one.startswith(("gen_ai.", "error.", "http."))}
    assert len(standard) >= 15
    assert standard <= theirs
    operations = {one.value for one in gen_ai.GenAiOperationNameValues}
    assert {names.CHAT, names.TEXT_COMPLETION} <= operations
