"""Tools: what the model may ask for, and how a request becomes a result."""

from mini_agent.tools.calc import calc_tool
from mini_agent.tools.execute import execute_call, prepare_call
from mini_agent.tools.read import read_tool
from mini_agent.tools.tool import Tool, ToolError, ToolRegistry
from mini_agent.tools.validate import argument_problems, check_arguments

__all__ = [
    "Tool",
    "ToolError",
    "ToolRegistry",
    "argument_problems",
    "calc_tool",
    "check_arguments",
    "execute_call",
    "prepare_call",
    "read_tool",
]
