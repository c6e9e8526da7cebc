import { strings } from "../strings";
import { usePage } from "./context";
import { LoadView } from "./load_view";
import { Narrow } from "./narrow";

// Who answers, on what, and how far its load is.
export function Header(props: { onChats: () => void; onModels: () => void; onNewChat: () => void; icon: string }) {
  const { session, inside } = usePage();
  const health = session.health.value;
  const model = session.model.value;
  const name = model ? (model.model ?? strings.noModel) : "unicorn_async";
  return (
    <header>
      <div class="bar">
        <button id="chats-button" class="quiet icon" type="button" aria-haspopup="dialog" aria-label={strings.chats} onClick={props.onChats}>
          <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">
            <path d="M4 7h16M4 12h16M4 17h10" />
          </svg>
        </button>
        <img class="logo" src={props.icon} alt="" width="32" height="32" />
        <div class="identity">
          <h1 id="model">{name}</h1>
          <p class="device">
            <span id="device">{deviceText(session.link.value, health)}</span>{" "}
            {health?.device?.software && (
              <strong id="software" class="badge">
                {strings.software}
              </strong>
            )}
          </p>
        </div>
        <button id="inside-button" class="quiet icon" type="button" aria-expanded={inside.isOpen.value} aria-label={strings.inside}
          title={strings.inside} onClick={() => { inside.toggle(); }}>
          <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">
            <path d="M3 13h4l3-8 4 14 3-6h4" />
          </svg>
        </button>
        {health?.can_switch && (
          <button id="models-button" class="quiet" type="button" aria-haspopup="dialog" onClick={props.onModels}>
            <Narrow path="M12 3 3 8l9 5 9-5-9-5Zm-9 10 9 5 9-5" text={strings.models} />
          </button>
        )}
        <button id="new-chat" class="quiet" type="button" onClick={props.onNewChat}>
          <Narrow path="M12 5v14M5 12h14" text={strings.newChat} />
        </button>
      </div>
      <LoadView />
    </header>
  );
}

function deviceText(link: string, health: ReturnType<typeof usePage>["session"]["health"]["value"]): string {
  if (link === "silent") return strings.serverSilent;
  if (link !== "open" || !health) return strings.connectingDevice;
  if (health.device) return health.device.name;
  if (health.waits_for === "download") return strings.downloadingModel;
  return health.status === "opening" ? strings.openingDevice : strings.noDevice;
}
