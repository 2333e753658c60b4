"""Sums of fp16 on processors go by a ring of our own. gloo adds such numbers one by one, 4 ns each, where torch adds
sixteen at once: of a 17 MB gradient among four that is 27 ms of each core."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from partita.cluster.cluster import Cluster
from partita.program.instruction import Collective, Instruction
from partita.program.layout import Bucket, Coding
from partita.program.program import Program, Role
from partita.program.space import Kind, Space
from partita.units import Bytes
from partita.wire.algorithms import BACKEND

HALF: Final = "float16"
LEAST: Final[Bytes] = 2**20  # below it the messages of a ring cost more than is won


def half_sums(program: Program, cluster: Cluster) -> Program:
    """The program in which the backend of processors adds up no long vector in fp16."""
    if not all(device.hosted for device in cluster.devices):
        return program
    return replace(program, roles=tuple(_by_rings(program, role) for role in program.roles))


def _by_rings(program: Program, role: Role) -> Role:
    body = tuple(_by_ring(program, instruction) for instruction in role.instructions)
    return role if body == role.instructions else replace(role, instructions=body)


def _by_ring(program: Program, instruction: Instruction) -> Instruction:
    act = instruction.act
    if not isinstance(act, Collective) or act.kind is not Kind.ALL_REDUCE or act.algorithm != BACKEND:
        return instruction
    long = program.payload(act) >= LEAST and _dtype(program, act) == HALF
    return replace(instruction, act=replace(act, algorithm="ring")) if long else instruction


def _dtype(program: Program, act: Collective) -> str:
    cargo = program.cargo(act)
    if isinstance(cargo, Bucket):
        return (cargo.sums if act.space is Space.GRADIENT else "") or cargo.dtype
    return cargo.dtype if isinstance(cargo, Coding) else ""
