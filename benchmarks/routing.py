"""How tokens that choose experts as if they drew them come to these. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, lgamma, log, log1p


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts of a layer, and how many of them each token has; tokens choose as if they drew."""

    num_experts: int
    num_chosen: int

    def distinct(self, tokens: int) -> float:
        """Experts that so many tokens choose."""
        return self.num_experts * (1 - (1 - self.num_chosen / self.num_experts) ** tokens)

    def rows(self, tokens: int, tile: int) -> float:
        """Rows of all experts' tiles, which are filled up: an expert's tokens are a binomial variable."""
        share = self.num_chosen / self.num_experts
        if share == 1:
            return self.num_experts * ceil(tokens / tile) * tile
        ways = (lgamma(tokens + 1) - lgamma(n + 1) - lgamma(tokens - n + 1) for n in range(tokens + 1))
        odds = (exp(way + n * log(share) + (tokens - n) * log1p(-share)) for n, way in enumerate(ways))
        return self.num_experts * tile * sum(chance * ceil(n / tile) for n, chance in enumerate(odds))
