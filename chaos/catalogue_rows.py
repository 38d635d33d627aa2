"""The rows of the fault catalogue: what each strikes, which faults make it, or why none can."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it is written down.

    Attributes:
        number: "1" to "48", or "+".
        name: ids under which the row is known; place: what it strikes.
        kinds: ids of the faults that make it, or patterns of ids (`net.*`).
        reason: why no fault makes it; shown only while none is declared.
        note: what the kinds do not say: a setting that stands for a row's second half.
    """

    number: str
    name: str
    place: str
    kinds: tuple[str, ...] = ()
    reason: str = ""
    note: str = ""


ROWS = (
    Row("1", "kv.write_race", "KV page", ("kv.write_race",)),
    Row("2", "kv.page_alias", "block table", ("kv.page_alias",)),
    Row("3", "kv.stale_after_preempt", "block table", ("kv.stale_after_preempt",)),
    Row("4", "kv.use_after_free", "page books", ("kv.use_after_free",)),
    Row(
        "5",
        "kv.leak_refcount",
        "page books",
        ("kv.leak_refcount",),
        note="the pages are counted as an ended request's, which is what a missed free leaves",
    ),
    Row(
        "6",
        "kv.bitflip",
        "KV page",
        ("kv.bitflip", "kv.poisoned_page"),
        note="a NaN in the unused tail of a page is the same place with another value",
    ),
    Row(
        "7",
        "kv.prefix_hash_collision",
        "prefix index",
        ("kv.prefix_hash_collision",),
        note="the index is keyed by the tokens themselves, so that no two prefixes collide by "
        "chance: its entries are exchanged",
    ),
    Row("8", "kv.off_by_one_pos", "positions", ("kv.off_by_one_pos",)),
    Row(
        "9",
        "kv.eviction_storm",
        "page books",
        ("kv.eviction_storm",),
        note="the pool may give out fewer pages than it has; none is taken away",
    ),
    Row(
        "10",
        "kv.swap_corrupt",
        "swapped-out page",
        ("kv.swap_corrupt",),
        reason="the engine has no swap: a preempted request is computed anew from its tokens",
    ),
    Row(
        "11",
        "rope.freq_nan / rope.pos_jump",
        "rotary table",
        ("rope.table", "rope.pos_jump"),
        note="freq_nan is rope.table with factor nan",
    ),
    Row(
        "12",
        "rmsnorm.eps_zero / scale_flip",
        "norm",
        ("rmsnorm.eps", "rmsnorm.scale_flip"),
        note="eps_zero is rmsnorm.eps with eps 0, which only rows of next to nothing notice",
    ),
    Row("13", "attn.mask_shift", "attention mask", ("attn.mask_shift",)),
    Row("14", "attn.softmax_inf", "attention scores", ("attn.softmax_inf",)),
    Row("15", "attn.cu_seqlens", "launch metadata", ("attn.cu_seqlens",)),
    Row("16", "attn.backend_fail", "kernel", ("attn.backend_fail",)),
    Row("17", "attn.workspace_clobber", "launch workspace", ("attn.workspace_clobber",)),
    Row("18", "act.bitflip / act.nan", "activation", ("act.bitflip", "act.nan")),
    Row("19", "weight.bitflip", "weights", ("weight.bitflip",)),
    Row("20", "logits.bitflip / top1_swap", "logits", ("logits.bitflip", "logits.top1_swap")),
    Row("21", "sampler.param_poison", "sampling parameters", ("sampler.param_poison",)),
    Row("22", "batch.empty / batch.T0", "batch", ("batch.empty",)),
    Row("23", "batch.ragged_swap", "batch", ("batch.ragged_swap",)),
    Row(
        "24",
        "batch.bad_dtype / bad_device / noncontig",
        "batch",
        ("batch.bad_dtype",),
        note="noncontig is batch.bad_dtype with kind stride; bad_device needs a second device",
    ),
    Row("25", "batch.oob_token", "batch", ("batch.oob_token",)),
    Row(
        "26",
        "batch.too_long",
        "request",
        ("batch.malformed",),
        note="batch.malformed with kind too_long; its other kinds are malformed in other ways",
    ),
    Row(
        "27",
        "batch.mask_mismatch",
        "padding mask",
        ("batch.mask_mismatch",),
        note="the engine has no padding mask, rows are packed by length: it is the mask of an "
        "attention launch that does not fit",
    ),
    Row("28", "prompt.poison", "request", ("prompt.poison",)),
    Row(
        "29",
        "prompt.injection_of_template",
        "request",
        ("prompt.injection_of_template",),
        note="of chats; a plain completion is its caller's own template",
    ),
    Row("30", "client.abort_storm", "clients", ("client.abort_storm",)),
    Row(
        "31",
        "client.slow_consumer",
        "clients",
        ("client.slow_consumer",),
        note="seen by the kernel's table of connections, so only where gateway and proxy share a "
        "host and nothing between them and the client buffers",
    ),
    Row("32", "load.thundering_herd", "clients", ("load.thundering_herd",)),
    Row(
        "33",
        "client.duplicate_submit",
        "clients",
        ("client.duplicate_submit",),
        note="keys are known to one gateway: behind several, copies must reach the same one",
    ),
    Row("34", "actor.kill", "worker process", ("actor.kill",)),
    Row("35", "actor.freeze", "worker process", ("actor.freeze",)),
    Row(
        "36",
        "actor.gil_lock / actor.slow",
        "worker process",
        ("actor.gil_lock", "actor.slow"),
        note="struck inside the replica, at its decode steps; an event and no alert tells of it",
    ),
    Row(
        "37",
        "actor.oom",
        "worker process",
        ("actor.oom",),
        note="the limit is on the address space of that process, for one allocation: the kernel's "
        "own choice of a victim is not made",
    ),
    Row(
        "38",
        "actor.init_fail",
        "worker process",
        ("actor.init_fail",),
        note="a replica is killed so that its replacement must start",
    ),
    Row(
        "39",
        "node.kill",
        "Ray node",
        ("node.*",),
        note="in a cluster of the run's own, with system.nodes 2 or more",
    ),
    Row(
        "40",
        "gcs.outage",
        "Ray control plane",
        ("gcs.*",),
        note="it stands still and goes on: killed, it would not come back, since nothing is stored",
    ),
    Row(
        "41",
        "rpc.loss",
        "Ray RPC",
        ("rpc.loss",),
        reason="Ray loses calls only from the start of a process to its end and by its own "
        "unseeded chance, so that such a fault could neither be replayed nor healed",
    ),
    Row(
        "42",
        "rpc.delay",
        "Ray RPC",
        ("rpc.delay",),
        reason="Ray delays calls only from the start of a process to its end, so that such a "
        "fault could not be healed; late bytes between clients and service are net.delay",
    ),
    Row(
        "43",
        "net.partition / net.delay / net.reset",
        "network",
        ("net.*",),
        reason="no fault is declared",
        note="on the road between the run's own load and the gateway: between gateway and "
        "replica travel Ray's calls, on ports that nothing can stand between without root",
    ),
    Row(
        "44",
        "host.mem_pressure / gpu.mem_pressure",
        "memory",
        ("host.*", "gpu.*"),
        note="simulated: the reading of free memory is low, no memory is taken; on a GPU the "
        "same reading is the device's",
    ),
    Row(
        "45",
        "disk.full / disk.slow / spill_error",
        "disk",
        ("disk.*",),
        note="disk.full is a limit on the size of the serving processes' files (EFBIG for ENOSPC), "
        "which needs neither root nor a filesystem; no fault makes the disk slow, or Ray's "
        "spilling fail",
    ),
    Row(
        "46",
        "clock.skew / clock.jump",
        "clock",
        ("clock.*",),
        note="the wall time that a replica reads; the machine's own clock is left alone",
    ),
    Row(
        "47",
        "obs.metrics_outage / obs.otel_backpressure / alert.sink_down",
        "telemetry",
        ("obs.*", "alert.*"),
        note="collector and receiver of alerts are the run's own; on an application that is "
        "served already only the page of metrics can be taken",
    ),
    Row("48", "check.self_fault", "checker", ("check.*",)),
    Row(
        "+",
        "Kubernetes only",
        "pod",
        ("pod.*",),
        note="eviction, drain, rolling update and device errors need a cluster of one's own",
    ),
)
