from tests.checked import captured_once, graph, task

__all__ = ["captured_once", "graph", "task"]
