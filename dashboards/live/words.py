"""The words of the live page, in English and in Chinese."""

from collections.abc import Mapping

LANGUAGES = ("en", "zh")

_WORDS: Mapping[str, tuple[str, str]] = {
    "title": ("Tocsin live", "Tocsin 实时"),
    "other_language": ("中文", "English"),
    "skip": ("Skip to the grid", "跳到状态表"),
    "model": ("model", "模型"),
    "profile": ("profile", "检查档位"),
    "as_of": ("as of", "截至"),
    "connecting": ("connecting …", "连接中……"),
    "live": ("live", "实时"),
    "lost": ("connection lost, trying again", "连接中断,正在重试"),
    "still": ("a still picture: reloads every 5 s", "静态页面:每 5 秒刷新"),
    "all_well": ("All checks are silent", "所有检查均无告警"),
    "alarms": ("Alarms within the last minute", "过去一分钟内有告警"),
    "contained": (
        "Each was caught before its tokens left; see the failures below.",
        "所有告警均在词元发出前被拦截,详见下方失败记录。",
    ),
    "severe": ("P0: somebody must look now", "P0:需要立即处理"),
    "blind": ("Checks are switched off in part", "部分检查已关闭"),
    "blind_more": (
        "What is off says so in the grid; orders end by themselves.",
        "已关闭的项目见状态表;指令到期后自动恢复。",
    ),
    "no_replica": ("No replica serves", "没有副本在服务"),
    "no_replica_more": (
        "Requests wait or are refused until one is back.",
        "在副本恢复之前,请求会等待或被拒绝。",
    ),
    "drill": (
        "A chaos experiment is breaking things on purpose.",
        "混沌实验正在有意注入故障。",
    ),
    "replicas_up": ("Replicas up", "在线副本"),
    "of": ("of", "/"),
    "last_token": ("Last token", "最近词元"),
    "ago": ("ago", "前"),
    "never": ("never", "从未"),
    "kv_fullest": ("KV pages, fullest replica", "KV 页(最满的副本)"),
    "circuits_open": ("Circuits open", "已熔断"),
    "grid": ("Checks by operator and layer", "各算子与各层的检查"),
    "grid_lead": (
        "One light an operator and layer. An alarm shows for a minute and is noted for as long as "
        "the failure is listed.",
        "每个算子、每一层一盏灯。告警显示一分钟,之后在失败记录保留期间标为“曾有告警”。",
    ),
    "operator": ("Operator", "算子"),
    "numerical": ("numerical", "数值"),
    "memory": ("memory", "内存"),
    "state": ("state", "状态"),
    "semantic": ("semantic", "语义"),
    "everything": ("everything", "全部"),
    "light_absent": ("no check", "无检查"),
    "light_idle": ("idle", "空闲"),
    "light_off": ("off", "关闭"),
    "light_ok": ("ok", "正常"),
    "light_note": ("was {n} s ago", "{n} 秒前"),
    "light_warn": ("{n} in 60 s", "60 秒内 {n} 次"),
    "light_bad": ("P0: {n} in 60 s", "P0:60 秒内 {n} 次"),
    "legend_idle": ("on, none ran lately", "已开启,近期未运行"),
    "legend_off": ("switched off", "已关闭"),
    "legend_ok": ("ran, silent", "已运行,无告警"),
    "legend_note": ("alarmed, silent since", "曾有告警,现已平静"),
    "legend_warn": ("alarm within 60 s", "60 秒内有告警"),
    "legend_bad": ("P0 or not repaired, within 60 s", "60 秒内 P0 或未修复"),
    "checks_declared": ("checks: {n}", "{n} 项检查"),
    "per_second": ("/s", "/秒"),
    "failures": ("Failures", "失败记录"),
    "failures_lead": (
        "Newest first. The command writes a small test that fails as recorded.",
        "最新的在前。命令会生成一个按记录复现失败的小测试。",
    ),
    "failures_none": ("No check has failed.", "没有检查失败。"),
    "failures_shown": ("{shown} of {total} shown", "显示 {shown} / {total} 条"),
    "missed": (
        "{n} events came faster than this page reads; the journal has them all counted.",
        "有 {n} 个事件来得太快未能显示;日志中均有计数。",
    ),
    "copy": ("Copy", "复制"),
    "copied": ("Copied", "已复制"),
    "copy_failed": ("Copy it by hand", "请手动复制"),
    "when": ("When", "时间"),
    "what": ("What", "内容"),
    "settled": ("Settled", "处理结果"),
    "where": ("Where", "位置"),
    "reproduce": ("Reproduce", "复现"),
    "step": ("step", "步"),
    "ratio": ("{x}× its limit", "阈值的 {x} 倍"),
    "requests_hit": ("requests: {n}", "{n} 个请求"),
    "cause_transient": ("transient: gone when run again", "瞬时:重跑后消失"),
    "cause_persistent": ("persistent: the fallback served", "持续:由备用后端服务"),
    "cause_state": ("state: recomputed or repaired", "状态:已重算或修复"),
    "cause_legitimate": ("refuted: both backends agree", "已排除:两种后端结果一致"),
    "cause_unresolved": ("not repaired: refused", "未能修复:已拒绝"),
    "cause_check_error": ("the check itself raised", "检查自身出错"),
    "replicas": ("Replicas and breakers", "副本与熔断器"),
    "replica": ("Replica", "副本"),
    "status_up": ("up", "在线"),
    "status_stalled": ("stalled", "停滞"),
    "status_down": ("down", "下线"),
    "serves": ("serves", "服务中"),
    "closed": ("closed", "闭合"),
    "open": ("open", "断开"),
    "half_open": ("half open", "半开"),
    "running": ("running", "运行"),
    "waiting": ("waiting", "等待"),
    "tokens": ("tokens", "词元"),
    "kv": ("KV pages", "KV 页"),
    "replicas_none": ("No replica has reported yet.", "尚无副本上报。"),
    "backends": ("Attention backends", "注意力后端"),
    "load": ("Load", "负载"),
    "chaos": ("Chaos timeline", "混沌时间线"),
    "chaos_lead": (
        "Each fault on purpose: when it was ordered, fired, was noticed and was gone again.",
        "每个有意注入的故障:何时下达、触发、被发现、恢复。",
    ),
    "chaos_none": ("No fault has been injected.", "没有注入故障。"),
    "injected": ("injected", "下达"),
    "fired": ("fired", "触发"),
    "detected": ("detected", "检出"),
    "healed": ("healed", "恢复"),
    "not_yet": ("not yet", "尚未"),
    "not_fired": ("waits for its moment", "等待时机"),
    "taken_back": ("taken back before it fired", "触发前已撤回"),
    "unhealed": ("not shown to be gone", "未证实恢复"),
    "after": ("after", "用时"),
    "by": ("by", "检测项"),
    "figures": ("What people get, and what it costs", "用户所见与代价"),
    "now": ("now", "当前"),
    "no_data": ("no data", "无数据"),
    "switchboard": ("Switchboard", "开关面板"),
    "switchboard_lead": (
        "What is checked where. An order reaches every replica within a step, needs a reason, and "
        "ends by itself.",
        "在何处检查什么。指令在一步之内到达所有副本,必须写明原因,到期自动恢复。",
    ),
    "read_only": (
        "Read-only: this service was started without a token (TOCSIN_TOKEN).",
        "只读:服务启动时未设置令牌(TOCSIN_TOKEN)。",
    ),
    "no_script": (
        "Without JavaScript, switch with a command:",
        "未启用 JavaScript 时,请用命令切换:",
    ),
    "off": ("off", "关闭"),
    "guard": ("guard", "守护"),
    "full": ("full", "完整"),
    "orders": ("Orders in force", "生效中的指令"),
    "orders_none": (
        "None: the profile that the service was started with holds everywhere.",
        "无:各处均为服务启动时的档位。",
    ),
    "degradations": ("Degradations in force", "生效中的降级"),
    "degradations_none": ("None.", "无。"),
    "audit": ("Audit log", "审计日志"),
    "audit_none": ("Nothing was switched.", "尚无切换记录。"),
    "left": ("left", "剩余"),
    "on_replicas": ("replicas: {n}", "{n} 个副本"),
    "reason": ("Reason", "原因"),
    "reason_hint": ("why, for the audit log", "写入审计日志的原因"),
    "ttl": ("Ends after", "持续时间"),
    "minute_1": ("1 minute", "1 分钟"),
    "minute_5": ("5 minutes", "5 分钟"),
    "minute_15": ("15 minutes", "15 分钟"),
    "hour_1": ("1 hour", "1 小时"),
    "hour_8": ("8 hours", "8 小时"),
    "ttl_choose": ("choose …", "请选择……"),
    "token": ("Token", "令牌"),
    "token_hint": (
        "the one that `tocsin serve` printed; kept in this tab only",
        "`tocsin serve` 打印的令牌;仅保存在当前标签页",
    ),
    "apply": ("Switch", "切换"),
    "cancel": ("Cancel", "取消"),
    "switch_to": ("Switch {scope} to {profile}", "将 {scope} 切换为 {profile}"),
    "weaker": (
        "Fewer checks: what they would have caught leaves unnoticed until the order ends.",
        "检查减少:在指令到期之前,本可发现的问题将不会被察觉。",
    ),
    "done": ("Done: in force on every replica within a step.", "完成:一步之内在所有副本生效。"),
    "bad_token": ("The token was not accepted.", "令牌无效。"),
    "failed": ("It did not work: ", "未能完成:"),
    "actor_api": ("by hand", "手动"),
    "actor_auto": ("automatic", "自动"),
    "actor_config": ("configuration", "配置"),
    "actor_end": ("end of time", "到期"),
    "incomplete": ("Nothing was read from the metrics hubs yet.", "尚未从指标中心读到数据。"),
    "metrics_link": ("Metrics", "指标"),
    "health_link": ("Health", "健康"),
    "json_link": ("This page as JSON", "本页 JSON"),
    "top_hint": ("The same in a terminal:", "在终端中查看:"),
}


def words(language: str) -> Mapping[str, str]:
    """All words in one of `LANGUAGES`."""
    column = LANGUAGES.index(language)
    return {key: texts[column] for key, texts in _WORDS.items()}


def chosen(asked: str | None, accept: str) -> str:
    """The language of an answer.

    Args:
        asked: what the person chose, None when nothing.
        accept: value of the header Accept-Language.
    """
    if asked in LANGUAGES:
        return str(asked)
    ranked: list[tuple[float, int, str]] = []
    for place, piece in enumerate(accept.split(",")):
        tag, _, rest = piece.strip().partition(";")
        language = tag.partition("-")[0].lower()
        if language in LANGUAGES:
            ranked.append((-_weight(rest), place, language))
    return min(ranked)[2] if ranked else LANGUAGES[0]


def _weight(rest: str) -> float:
    name, _, value = rest.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0
