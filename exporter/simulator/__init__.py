"""The outside world of `demo`: an SGLang server of 8 stages and 8 cards that do not exist.

Goes in: the name of a scenario and a folder. Goes out: what a real host offers the sources, that
is a journal (or a log file), a GPU driver and a folder like /proc. It never feeds the model.
"""

from exporter.simulator.demo_server import DemoServer
from exporter.simulator.scenarios import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "DemoServer", "Scenario"]
