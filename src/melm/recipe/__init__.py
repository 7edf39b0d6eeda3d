"""Results written as one file each (`recipes/`), read and run."""

from melm.recipe.reading import Recipe, read_recipe
from melm.recipe.running import Parts, commit, run_recipe

__all__ = ["Parts", "Recipe", "commit", "read_recipe", "run_recipe"]
