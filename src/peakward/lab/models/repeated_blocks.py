"""Finds the blocks that a module repeats."""

from torch import nn


def repeated_blocks(module: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """The longest list of modules of one class that lies in no other such list; None without one.

    A block's own lists, such as experts, lie in the list of blocks and are therefore not chosen.
    """
    found: list[nn.ModuleList | nn.Sequential] = []
    _search(module, found)
    return max(found, key=len, default=None)


def _search(module: nn.Module, found: list[nn.ModuleList | nn.Sequential]) -> None:
    if isinstance(module, nn.ModuleList | nn.Sequential) and _alike(module):
        found.append(module)
        return
    for child in module.children():
        _search(child, found)


def _alike(blocks: nn.ModuleList | nn.Sequential) -> bool:
    """Whether these are several modules of one class, each with more than one part, and not mere
    layers."""
    kinds = {type(each) for each in blocks}
    return len(blocks) > 1 and len(kinds) == 1 and any(True for _ in blocks[0].children())
