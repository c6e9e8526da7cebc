"""What is counted of a model's weights for the choice of where its attention runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.engine.attending import weights_of
from unicorn_async.engine.files import ModelFiles
from unicorn_async.models.blocks.experts import Experts

if TYPE_CHECKING:
    from tests.engine.conftest import WriteModel


@pytest.mark.parametrize("name", ["llama", "llama_tied"])
def test_a_dense_model_s_steps_read_all_matrices_and_no_embeddings(name: str, model_directory: WriteModel) -> None:
    files = ModelFiles.read(model_directory(name))
    table = files.config.vocab_size * files.config.hidden_size
    matrices = sum(
        int(weight.shape[0] * weight.shape[1])
        for layer in files.config.layers
        for weight in layer.weights
        if len(weight.shape) == 2
    )
    counted = weights_of(files)
    assert (counted.elements, counted.expert_elements) == (matrices + table, 0)  # the head's table, be it tied or not
    assert counted.nbytes == 2 * counted.elements


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe"])
def test_experts_are_counted_by_themselves_with_the_share_that_a_token_takes(
    name: str, model_directory: WriteModel
) -> None:
    files = ModelFiles.read(model_directory(name))
    experts = [block for layer in files.config.layers for block in layer.blocks if isinstance(block, Experts)]
    counted = weights_of(files)
    routed = sum(3 * b.routing.num_experts * b.hidden_size * b.intermediate_size for b in experts)
    assert counted.expert_elements == routed > 0
    assert counted.expert_nbytes == 2 * routed
    assert counted.expert_share == experts[0].routing.num_chosen / experts[0].routing.num_experts < 1
    assert counted.elements > 0
