"""Plan -> Prediction: iteration time by the exact recurrence, memory by term, and what they mean."""

from hetplan.predict.checks import plan_mistakes, rules_broken
from hetplan.predict.outcome import predict, predict_in
from hetplan.predict.setting import Setting
from hetplan.predict.timing import stage_memory
from hetplan.predict.trace import trace

__all__ = ["Setting", "plan_mistakes", "predict", "predict_in", "rules_broken", "stage_memory", "trace"]
