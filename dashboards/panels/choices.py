"""What several dashboards share: the choices at the top, and numbers that stand for words."""

from tocsin.core import metrics
from tocsin.dashboards.panel import Level, Threshold, ValueText, Variable

MODEL = Variable("model", "Model", "模型", metrics.REQUESTS)
OPERATOR = Variable("operator", "Operator", "算子", metrics.CHECKS)
REPLICA = Variable("replica", "Replica", "副本", metrics.REPLICA_UP)

UP_DOWN = (
    ValueText(1, "up", "在线", Level.OK),
    ValueText(0, "lost", "失联", Level.BAD),
)
RUNS = (
    ValueText(1, "an experiment runs", "实验进行中", Level.NOTE),
    ValueText(0, "none", "无", Level.IDLE),
)
IN_USE = (
    ValueText(1, "serves", "服务中", Level.OK),
    ValueText(0, "stands by", "待命", Level.IDLE),
)
ANY_IS_BAD = (Threshold(1, Level.BAD),)
ANY_IS_NOTED = (Threshold(1, Level.NOTE),)
