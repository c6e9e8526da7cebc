import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { choiceOf, NO_OPTIONS } from "../models/choice";
import type { Options } from "../models/choice";
import { isFound, neighbour, summary } from "../models/facts";
import { listModels, loadModel, unloadModel } from "../server/models";
import type { Listing, Model } from "../server/models";
import type { ModelState } from "../server/session";
import { strings } from "../strings";
import { usePage } from "./context";
import { Dialog } from "./dialog";
import { hasKeyboard } from "./focus";
import { isComposed } from "./keys";
import { ModelDetailsView } from "./model_details";
import { useMedia, usePlacement } from "./model_hooks";

const WIDE = "(min-width: 48rem)"; // there is room for the details beside the list
const SERVED = new Set(["loading", "ready"]);
const optionId = (index: number): string => `model-option-${index}`;

// Finds one of the server's models, says where it would lie, and has it loaded in the place of the last.
export function ModelsDialog({ onClose }: { onClose: () => void }) {
  const { session } = usePage();
  const state = session.model.value;
  const { listing, error: listError } = useListing(state);
  const [search, setSearch] = useState("");
  const [chosen, setChosen] = useState<string | null>(null);
  const [options, setOptions] = useState<Options>(NO_OPTIONS);
  const [isShown, setShown] = useState(false); // the details, where there is room for them or the list alone
  const isWide = useMedia(WIDE);
  const found = listing.data.filter((model) => isFound(model, search));
  const model = found.find(({ id }) => id === (chosen ?? state?.model)) ?? found[0] ?? null;
  const hasDetails = model !== null && (isWide || isShown);
  const isBroken = model !== null && isUnusable(model);
  const choice = model && choiceOf(model.id, options);
  const plan = usePlacement(hasDetails && !isBroken ? choice : null);
  const { act, error, isBusy, forget } = useAction(onClose);
  const choose = (id: string): void => {
    if (id === model?.id) return;
    setChosen(id);
    setOptions(NO_OPTIONS);
    forget();
  };
  const canLoad = choice !== null && !isBroken && plan.placement?.fits !== false;
  const isThere = state?.status === "ready" && model?.id === state.model && options === NO_OPTIONS;
  const load = (): void => {
    if (isThere) onClose();
    else if (choice && canLoad) act(loadModel(session.connection, choice));
  };
  const isLoaded = listing.data.some(({ loaded }) => loaded);
  return (
    <Dialog id="models-dialog" labelledBy="models-title" onClose={onClose}>
      <h2 id="models-title" tabIndex={-1} autofocus={!hasKeyboard()}>{hasDetails && !isWide ? model.id : strings.modelsTitle}</h2>
      <div class="models-panes">
        {(isWide || !isShown) && (
          <div class="models-pane">
            <Search found={found} model={model} search={search} onSearch={setSearch} onChoose={choose}
              onEnter={() => { if (isWide) load(); else if (model) setShown(true); }} />
            <List found={found} model={model} state={state} onChoose={(id) => { choose(id); setShown(true); }} />
            {!found.length && <p class="hint">{listError || (listing.data.length ? strings.nothingFound : strings.readingModels)}</p>}
          </div>
        )}
        {hasDetails && (
          <ModelDetailsView key={model.id} model={model} adapters={listing.adapters} options={options} plan={plan}
            isWide={isWide} onOptions={setOptions} />
        )}
      </div>
      {(error || (listError && found.length > 0)) && <p id="models-error" class="problem" role="alert">{error || listError}</p>}
      <div class="buttons">
        {isLoaded && (isWide || !isShown) && (
          <button id="unload" class="quiet" type="button" onClick={() => { act(unloadModel(session.connection)); }}>{strings.unload}</button>
        )}
        <span class="hint" id="models-hint">{strings.modelsHint}</span>
        {isWide || !isShown ? (
          <button key="close" class="quiet" type="button" onClick={onClose}>{strings.close}</button>
        ) : (
          <button key="back" id="models-back" class="quiet" type="button" onClick={() => { setShown(false); forget(); }}>{strings.back}</button>
        )}
        {hasDetails && !isThere && (
          <button id="load-model" class="primary" type="button" disabled={!canLoad || isBusy} aria-describedby="models-hint" onClick={load}>
            {isBusy ? strings.checkingModel : strings.loadModel}
          </button>
        )}
      </div>
    </Dialog>
  );
}

function Search(props: {
  found: readonly Model[];
  model: Model | null;
  search: string;
  onSearch: (text: string) => void;
  onChoose: (id: string) => void;
  onEnter: () => void;
}) {
  const { found, model, search } = props;
  const active = found.findIndex(({ id }) => id === model?.id);
  return (
    <input id="models-search" type="text" role="combobox" aria-expanded="true" aria-controls="models-list" aria-autocomplete="list"
      aria-label={strings.searchModels} placeholder={strings.searchModels} autocomplete="off" spellcheck={false} enterkeyhint="go"
      autofocus={hasKeyboard()} value={search} {...(active >= 0 && { "aria-activedescendant": optionId(active) })}
      onInput={(event) => { props.onSearch(event.currentTarget.value); }}
      onKeyDown={(event) => {
        if (isComposed(event)) return;
        const next = neighbour(found, model?.id ?? null, event.key);
        if (next !== null) props.onChoose(next);
        else if (event.key === "Enter") props.onEnter();
        else return;
        event.preventDefault();
      }} />
  );
}

function List(props: { found: readonly Model[]; model: Model | null; state: ModelState | null; onChoose: (id: string) => void }) {
  const { found, model, state } = props;
  const list = useRef<HTMLUListElement>(null);
  useScroll(list, model?.id ?? null, found.length);
  return (
    <ul id="models-list" class="models" role="listbox" aria-label={strings.modelsTitle} ref={list}>
      {found.map((item, index) => {
        const { id, details, status: listed } = item;
        const word = id === state?.model ? strings.words[state.status] : undefined;
        const status = word && state ? state.status : listed; // what came as an event is newer than the list
        return (
          <li key={id} id={optionId(index)} class="model" role="option" data-model={id} aria-selected={id === model?.id}
            {...(SERVED.has(status) && { "aria-current": true })}
            onMouseDown={(event) => { event.preventDefault(); }} // what has the keyboard keeps it
            onClick={() => { props.onChoose(id); }}>
            <span class="about">
              <span class="name">{id}</span>
              {details && <span class="facts">{summary(details)}</span>}
            </span>
            {word ? <span class="state">{word}</span> : item.problem && (
              <span class="state problem">{details?.fits === false ? strings.tooLargeModel : strings.unusableModel}</span>
            )}
          </li>
        );
      })}
    </ul>
  );
}

function useScroll(list: RefObject<HTMLUListElement | null>, id: string | null, count: number): void {
  useLayoutEffect(() => {
    list.current?.querySelector("[aria-selected='true']")?.scrollIntoView({ block: "nearest" });
  }, [id, count > 0]);
}

// The server's models, read again as long as the server finds out more of them.
function useListing(state: ModelState | null): { listing: Listing; error: string } {
  const { session } = usePage();
  const [listing, setListing] = useState<Listing>({ data: [], adapters: [] });
  const [error, setError] = useState("");
  useEffect(() => {
    let isCurrent = true;
    const read = async (unread: number): Promise<void> => {
      const found = await listModels(session.connection);
      if (!isCurrent) return;
      setListing(found);
      const left = found.data.filter(({ details, problem }) => !details && !problem).length;
      if (left && left < unread) await read(left);
    };
    read(Infinity).catch((problem: unknown) => {
      if (isCurrent) setError(messageOf(problem));
    });
    return () => { isCurrent = false; };
  }, [state]);
  return { listing, error };
}

// What the server is asked to do: closes the dialog when it is taken, and says why when it is not.
function useAction(onDone: () => void): { act: (action: Promise<void>) => void; error: string; isBusy: boolean; forget: () => void } {
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const act = (action: Promise<void>): void => {
    setError("");
    setBusy(true);
    action.then(onDone, (problem: unknown) => { setError(messageOf(problem)); }).finally(() => { setBusy(false); });
  };
  return { act, error, isBusy, forget: () => { setError(""); } };
}

// Nothing that can be set would help.
function isUnusable({ problem, details }: Model): boolean {
  return problem !== null && !details?.architecture;
}

function messageOf(problem: unknown): string {
  return problem instanceof Error ? problem.message : String(problem);
}
