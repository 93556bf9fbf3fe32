/**
 * What the Chat tab is doing, as a table, and what it says about it. Pure.
 *
 * The connection is made for the first question, so `ready` needs none.
 */

export const CHAT_TRANSITIONS = {
  loading: {
    ready: "ready", not_ready: "warming", absent: "absent", unauthorized: "locked",
    unreachable: "offline",
  },
  warming: { ready: "ready", absent: "absent", unauthorized: "locked", unreachable: "offline" },
  offline: { ready: "ready", not_ready: "warming", absent: "absent", unauthorized: "locked" },
  absent: { ready: "ready", not_ready: "warming", unauthorized: "locked" },
  locked: { key_given: "loading" },
  ready: { asked: "answering", lost: "reconnecting", unauthorized: "locked" },
  answering: { settled: "ready", lost: "reconnecting", unauthorized: "locked" },
  reconnecting: { connected: "ready", ended: "ready", unauthorized: "locked" },
};

/** Short word for the chip in the corner. */
export const CHAT_CHIPS = {
  loading: "Loading",
  warming: "Warming up",
  offline: "Offline",
  absent: "No model",
  locked: "Key needed",
  ready: "Ready",
  answering: "Answering",
  reconnecting: "Reconnecting",
};

/** Shown instead of the messages, by state; `ready` is the card of an empty chat. */
export const CHAT_NOTICES = {
  loading: {
    title: "One moment",
    text: "Asking the gateway which models it serves.",
  },
  warming: {
    title: "The language model is warming up",
    text: "The gateway loads it and runs a first prompt. This page goes on by itself.",
  },
  offline: {
    title: "The gateway does not answer",
    text: "Check that it is running. This page tries again every few seconds.",
  },
  absent: {
    title: "No language model is served here",
    text: "Start the gateway with one: “clawstream demo --chat”, or “make demo-chat” in a checkout. Then reload this page.",
  },
  locked: {
    title: "This gateway asks for a key",
    text: "Enter an API key. It stays in this page's memory and is gone when you leave.",
  },
  wrong_key: {
    title: "That key was not accepted",
    text: "Check it and try again. It stays in this page's memory only.",
  },
  ready: {
    title: "Ask something",
    text: "The answer comes as it is made, token by token. Several chats can run at once.",
  },
};

/** Why a question was not sent, by PromptStream.refusal(). */
export const REFUSALS = {
  not_connected: "The connection was lost before the question left.",
  draining: "The gateway is restarting.",
  too_many: "The gateway answers no more chats at once. Wait for one, or stop it.",
  too_large: "That is too long for one message. Shorten it.",
};

/** What to say about a finished answer beside its numbers; an empty text says nothing. */
export const FINISHES = {
  length: "cut at the token limit",
  content_filter: "ended by the content filter",
  deadline: "out of time",
  cancelled: "stopped",
};

/** What the page says while it waits to reconnect. */
export function chatReconnectText(seconds) {
  return `Connection lost. ${seconds > 0 ? `Trying again in ${seconds} s.` : "Trying again now."}`;
}
