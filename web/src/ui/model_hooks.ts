// What the models dialog asks the browser and the server for.

import { useEffect, useState } from "preact/hooks";
import { placementOf } from "../server/models";
import type { Choice, Placement } from "../server/models";
import { usePage } from "./context";

const TYPING_MS = 120; // arrows and digits come faster than that

export interface Plan {
  placement: Placement | null;
  error: string;
  isPending: boolean; // what is there is of other options
}

const NO_PLAN: Plan = { placement: null, error: "", isPending: false };

// Where a model would lie, asked for anew whenever the choice is another one; of another model nothing stays.
export function usePlacement(choice: Choice | null): Plan {
  const { session } = usePage();
  const [plan, setPlan] = useState<Plan>(NO_PLAN);
  const key = choice && JSON.stringify(choice);
  useEffect(() => {
    const control = new AbortController();
    if (!choice) {
      setPlan(NO_PLAN);
      return undefined;
    }
    setPlan(({ placement }) => ({ placement: placement?.model === choice.model ? placement : null, error: "", isPending: true }));
    const timer = setTimeout(() => {
      placementOf(session.connection, choice, control.signal).then(
        (placement) => { if (!control.signal.aborted) setPlan({ placement, error: "", isPending: false }); },
        (problem: unknown) => {
          const error = problem instanceof Error ? problem.message : String(problem);
          if (!control.signal.aborted) setPlan({ placement: null, error, isPending: false });
        },
      );
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [key]);
  return plan;
}

export function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const changed = (): void => { setMatches(list.matches); };
    list.addEventListener("change", changed);
    return () => { list.removeEventListener("change", changed); };
  }, [query]);
  return matches;
}
