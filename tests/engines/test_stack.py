"""Stacked tensors: any memory order, there and back."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from prlc.engines.simulator.stack import Layout, squared_norms, stack

shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@given(shapes, st.integers(1, 3), st.randoms(use_true_random=False))
def test_rows_and_views_are_inverse_in_any_memory_order(
    shape: tuple[int, ...], rows: int, random: object
) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[attr-defined]
    back = sorted(range(len(shape)), key=order.__getitem__)
    mixed = torch.rand(rows, *(shape[d] for d in order)).permute(0, *(1 + d for d in back))
    assert mixed.shape == (rows, *shape)
    layout = Layout.of_row(mixed)
    flat = layout.rows(mixed)
    assert flat.shape == (rows, layout.numel)
    assert torch.equal(layout.view(flat), mixed)
    if rows > 1:  # where the order fits, nothing is copied
        assert flat.data_ptr() == mixed.data_ptr()


@given(shapes, st.integers(1, 3))
def test_tensors_in_another_order_are_copied_right(shape: tuple[int, ...], rows: int) -> None:
    plain = torch.rand(rows, *shape)
    reverse = torch.rand(rows, *shape[::-1]).permute(0, *range(len(shape), 0, -1))
    for layout in (Layout.of_row(plain), Layout.of_row(reverse)):
        for tensor in (plain, reverse):
            assert torch.equal(layout.view(layout.rows(tensor)), tensor)


def test_a_tensor_with_holes_gets_the_usual_order() -> None:
    assert Layout.of_row(torch.zeros(2, 3, 8)[:, :, ::2]).strides == (4, 1)
    assert Layout.of_row(torch.zeros(1, 1).expand(2, 5)).strides == (1,)


def test_a_stack_repeats_a_tensor_in_its_layout() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    for layout in (Layout((2, 3), (3, 1)), Layout((2, 3), (1, 2))):
        rows = stack(tensor, 4, layout)
        assert rows.shape == (4, 6)
        assert torch.equal(layout.view(rows), tensor.expand(4, 2, 3))


def test_squared_norms_are_over_all_tensors_of_a_row() -> None:
    rows = [torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[2.0], [0.0]])]
    assert squared_norms(rows).tolist() == [29.0, 1.0]
    assert squared_norms(rows).dtype == torch.float64
