import { contextOf, SCHEMES, weightOf } from "../models/choice";
import type { Options } from "../models/choice";
import { countText, sizeText, tokensText } from "../models/facts";
import type { Model, ModelDetails } from "../server/models";
import { strings } from "../strings";
import type { Plan } from "./model_hooks";
import { PlacementView } from "./placement_view";

interface DetailsProps {
  model: Model;
  adapters: readonly string[];
  options: Options;
  plan: Plan;
  isWide: boolean;
  onOptions: (options: Options) => void;
}

// A model before it is loaded: what it is, how it is to be loaded, and where it would lie then.
export function ModelDetailsView({ model, adapters, options, plan, isWide, onOptions }: DetailsProps) {
  const { details, problem } = model;
  const isKnown = details?.architecture != null;
  const isUsable = problem === null || isKnown;
  return (
    <section id="model-details" class="model-details" aria-label={strings.detailsOf(model.id)} tabIndex={0}>
      {isWide && <h3>{model.id}</h3>}
      {details && <Facts details={details} />}
      {isUsable && <Settings details={details} adapters={adapters} options={options} onOptions={onOptions} />}
      {isUsable ? <PlacementView plan={plan} /> : <p class="problem">{problem}</p>}
    </section>
  );
}

function Facts({ details }: { details: ModelDetails }) {
  const facts: [string, string | null][] = [
    [strings.factSize, sizeText(details.file_bytes)],
    [strings.factFormat, [details.format === "gguf" ? "GGUF" : details.format, details.weight_types.join(", ")].filter(Boolean).join(", ")],
    [strings.factParameters, details.parameters === null ? null : countText(details.parameters)],
    [strings.factLayers, details.layers === null ? null : String(details.layers)],
    [strings.factContext, details.max_context === null ? null : strings.tokens(tokensText(details.max_context))],
    [strings.factArchitecture, details.architecture?.replace(/For(CausalLM|ConditionalGeneration)$/, "") ?? null],
  ];
  return (
    <dl class="facts-table">
      {facts.map(([name, value]) => value !== null && (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Settings(props: Pick<DetailsProps, "adapters" | "options" | "onOptions"> & { details: ModelDetails | null }) {
  const { details, adapters, options, onOptions } = props;
  const isQuantised = details?.quantised === true;
  const isWrong = contextOf(options.context) === null;
  return (
    <div class="load-settings">
      <div class="setting">
        <label for="load-weights">{strings.weights}</label>
        <select id="load-weights" value={options.weights} disabled={isQuantised} {...(isQuantised && { "aria-describedby": "weights-hint" })}
          onChange={(event) => { onOptions({ ...options, weights: event.currentTarget.value }); }}>
          <option value="">{strings.byItself}</option>
          {SCHEMES.map((scheme) => <option key={scheme} value={scheme}>{strings.schemes[scheme] ?? scheme}</option>)}
        </select>
        {isQuantised && <p id="weights-hint" class="hint">{strings.quantisedAlready}</p>}
      </div>
      <div class="setting">
        <label for="load-context">{strings.contextTokens}</label>
        <input id="load-context" type="text" inputmode="numeric" autocomplete="off" placeholder={strings.byItself} value={options.context}
          aria-invalid={isWrong} {...(isWrong && { "aria-describedby": "context-wrong" })}
          onInput={(event) => { onOptions({ ...options, context: event.currentTarget.value }); }} />
        {isWrong && <p id="context-wrong" class="problem">{strings.expectedTokens}</p>}
      </div>
      {adapters.length > 0 && <Adapters adapters={adapters} options={options} onOptions={onOptions} />}
    </div>
  );
}

function Adapters({ adapters, options, onOptions }: Pick<DetailsProps, "adapters" | "options" | "onOptions">) {
  const chosen = options.adapters;
  const without = (name: string): Record<string, string> =>
    Object.fromEntries(Object.entries(chosen).filter(([other]) => other !== name));
  const set = (adapters: Record<string, string>): void => { onOptions({ ...options, adapters }); };
  return (
    <details class="adapters">
      <summary>{strings.adapters(Object.keys(chosen).length)}</summary>
      <ul>
        {adapters.map((name) => {
          const weight = chosen[name];
          return (
            <li key={name}>
              <label>
                <input type="checkbox" checked={weight !== undefined}
                  onChange={(event) => { set(event.currentTarget.checked ? { ...chosen, [name]: "1" } : without(name)); }} />
                <span class="name">{name}</span>
              </label>
              {weight !== undefined && (
                <input class="weight" type="text" inputmode="decimal" aria-label={strings.adapterWeight(name)} value={weight}
                  aria-invalid={weightOf(weight) === null}
                  onInput={(event) => { set({ ...chosen, [name]: event.currentTarget.value }); }} />
              )}
            </li>
          );
        })}
      </ul>
    </details>
  );
}
