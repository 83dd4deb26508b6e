"""All recipes, by name: the paper's own first."""

from __future__ import annotations

from dcfl.studies.recipes import open_questions, paper
from dcfl.studies.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        paper.participation_5,
        paper.participation_10,
        paper.participation_2,
        paper.tiny_imagenet,
        paper.ablation,
        paper.similarity,
        open_questions.lr_search,
        open_questions.mu_search,
        open_questions.weight_search,
        open_questions.readings,
        open_questions.server_side,
        open_questions.sample_wise,
        open_questions.coupling,
        open_questions.heterogeneity,
        open_questions.positives,
        open_questions.weights,
    )
}
