// Registers, lists and removes passkeys, and decides about a request with one. Everything from the server is shown as text.
const $ = (id) => document.getElementById(id);
const PAGE_SECRET = "steprail.page";

// The WebAuthn API has bytes where JSON has base64url.
const bytes = (text) =>
  Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
const base64url = (buffer) =>
  btoa(Array.from(new Uint8Array(buffer), (byte) => String.fromCharCode(byte)).join(""))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
const descriptors = (list) => (list ?? []).map((item) => ({ ...item, id: bytes(item.id) }));

function credentialJson(credential) {
  const { response } = credential;
  const fields = ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"];
  const present = fields.filter((field) => response[field]);
  return {
    id: credential.id,
    rawId: base64url(credential.rawId),
    type: credential.type,
    response: Object.fromEntries(present.map((field) => [field, base64url(response[field])])),
  };
}

function say(text, isProblem = false) {
  $("message").textContent = text;
  $("message").className = isProblem ? "problem" : "";
}

async function call(method, path, body, headers = {}) {
  const secret = sessionStorage.getItem(PAGE_SECRET) ?? "";
  const all = { "x-steprail-page": secret, ...headers };
  if (body !== undefined) all["content-type"] = "application/json";
  const sent = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(path, { method, headers: all, body: sent });
  const reply = response.status === 204 ? null : await response.json();
  if (!response.ok) {
    const hint = reply.code === "presence_required" ? "" : (reply.hint ?? "");
    throw Object.assign(new Error(`${reply.detail}. ${hint}`), { code: reply.code, status: response.status });
  }
  return reply;
}

/** The header that proves presence with a passkey, for exactly this request. */
async function confirmation(method, path, body) {
  const { publicKey } = await call("POST", "/api/v1/me/presence/challenge", { method, path, body: body ?? null });
  const credential = await navigator.credentials.get({
    publicKey: {
      ...publicKey,
      challenge: bytes(publicKey.challenge),
      allowCredentials: descriptors(publicKey.allowCredentials),
    },
  });
  const json = new TextEncoder().encode(JSON.stringify(credentialJson(credential)));
  return { "x-steprail-presence": `passkey ${base64url(json)}` };
}

async function confirmed(method, path, body) {
  return call(method, path, body, await confirmation(method, path, body));
}

async function register() {
  const status = await call("GET", "/api/v1/presence");
  const path = "/api/v1/me/passkeys/begin";
  let headers = {};
  if (status.passkeys > 0) headers = await confirmation("POST", path);
  else if (status.totp || status.pin) {
    headers = { "x-steprail-presence": `${status.totp ? "totp" : "pin"} ${$("proof").value.trim()}` };
  }
  const { publicKey } = await call("POST", path, undefined, headers);
  const credential = await navigator.credentials.create({
    publicKey: {
      ...publicKey,
      challenge: bytes(publicKey.challenge),
      user: { ...publicKey.user, id: bytes(publicKey.user.id) },
      excludeCredentials: descriptors(publicKey.excludeCredentials),
    },
  });
  const body = { name: $("name").value.trim(), credential: credentialJson(credential) };
  await call("POST", "/api/v1/me/passkeys/finish", body);
  $("register-form").reset();
  await showKeys();
  say("The passkey is registered.");
}

async function showKeys() {
  const [me, status, { items }] = await Promise.all([
    call("GET", "/api/v1/me"),
    call("GET", "/api/v1/presence"),
    call("GET", "/api/v1/me/passkeys"),
  ]);
  $("user").textContent = `Signed in as ${me.id}.`;
  $("list").replaceChildren(...items.flatMap(entry));
  const needsProof = status.passkeys === 0 && (status.totp || status.pin);
  $("proof-label").hidden = !needsProof;
  $("proof").required = needsProof;
  $("proof-name").textContent = status.totp ? "One-time code" : "PIN";
  $("keys").hidden = false;
}

function entry({ id, name, created_at }) {
  const term = document.createElement("dt");
  term.textContent = name;
  const value = document.createElement("dd");
  value.textContent = `registered ${new Date(created_at).toLocaleString()} `;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Remove";
  button.addEventListener("click", () => run(async () => {
    await confirmed("DELETE", `/api/v1/me/passkeys/${id}`);
    await showKeys();
    say("The passkey is removed.");
  }));
  value.append(button);
  return [term, value];
}

let request = null;

async function showRequest(runId, step) {
  const suffix = step === null ? "" : `?step=${encodeURIComponent(step)}`;
  request = await call("GET", `/api/v1/approvals/${encodeURIComponent(runId)}${suffix}`);
  $("request-text").textContent = request.text;
  const fields = Object.keys(request.form?.properties ?? {}).length > 0;
  $("answer-label").hidden = !fields;
  if (fields) {
    $("request-text").textContent += `\n\nanswer with values for: ${JSON.stringify(request.form, null, 2)}`;
    $("answer").value = "{}";
  }
  $("decision").hidden = !request.may_decide;
  if (!request.may_decide) say("You may not decide about this request.", true);
  $("request").hidden = false;
}

async function decide(action) {
  const body = { step: request.step, digest: request.digest };
  const comment = $("comment").value.trim();
  if (comment) body.reason = comment;
  if (action === "approve" && request.form) {
    body.answer = $("answer-label").hidden ? {} : JSON.parse($("answer").value);
  }
  const path = `/api/v1/runs/${request.run_id}/${action}`;
  const result = await confirmed("POST", path, body);
  $("decision").hidden = true;
  say(`${result.step} was ${result.decision} by ${result.by}. You can close the page.`);
}

let change = null;

/** Characters that a reader cannot see, such as those that reverse the text, are shown as escapes. */
const visible = (text) =>
  text.replace(/[^\P{C}\n]|[\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

/** The request that a command asks to confirm. It is one of the API of this server: another origin gets no page secret. */
function readChange() {
  const text = new URLSearchParams(location.hash.slice(1)).get("change");
  if (!text) return null;
  const { method, path, body } = JSON.parse(new TextDecoder().decode(bytes(text)));
  const url = new URL(path, location.origin);
  if (url.origin !== location.origin || !url.pathname.startsWith("/api/v1/")) {
    throw new Error("This is no request of the API.");
  }
  return { method, path: url.pathname + url.search, body };
}

function showChange() {
  const body = change.body === undefined ? "" : `\n${JSON.stringify(change.body, null, 2)}`;
  $("change-text").textContent = visible(`${change.method} ${change.path}${body}`);
  $("decision").hidden = true;
  $("change").hidden = false;
}

async function makeChange() {
  const result = await confirmed(change.method, change.path, change.body);
  $("confirm").hidden = true;
  if (result) {
    $("change-result").textContent = visible(JSON.stringify(result, null, 2));
    $("change-result").hidden = false;
  }
  say("The change is made. You can close the page.");
}

/** Runs an action of the page, and shows why it failed. */
async function run(action) {
  say("");
  try {
    await action();
  } catch (error) {
    say(error.name === "NotAllowedError" ? "The passkey was not used. Nothing was changed." : error.message, true);
    if (error.status === 401) $("sign-in").hidden = false;
  }
}

async function signIn() {
  const headers = { authorization: `Bearer ${$("token").value.trim()}` };
  const reply = await call("POST", "/api/v1/session", undefined, headers);
  sessionStorage.setItem(PAGE_SECRET, reply.page_secret);
  $("token-form").reset();
  $("sign-in").hidden = true;
  await start();
}

const DECISION = /^\/api\/v1\/runs\/([^/?]+)\/(approve|deny|codes)(\?|$)/;

async function start() {
  await showKeys();
  change = readChange();
  const decision = change?.path.match(DECISION);
  const query = new URLSearchParams(location.search);
  // A decision is not confirmed without the facts about its own request, whatever the address says.
  if (decision) await showRequest(decision[1], change.body?.step ?? null);
  else if (query.has("run")) await showRequest(query.get("run"), query.get("step"));
  if (decision && request.digest !== change.body?.digest) {
    $("decision").hidden = true;
    throw new Error("The request has changed since the command was run. Run it again.");
  }
  if (change) showChange();
}

const on = (id, event, action) => $(id).addEventListener(event, (happened) => {
  happened.preventDefault();
  run(action);
});
on("token-form", "submit", signIn);
on("register-form", "submit", register);
on("approve", "click", () => decide("approve"));
on("confirm", "click", makeChange);
on("deny", "click", () => decide("deny"));

if (!window.PublicKeyCredential) {
  const local = new URL(location.href);
  local.hostname = "localhost";
  const isLoopback = ["127.0.0.1", "[::1]"].includes(location.hostname);
  say(isLoopback ? `Passkeys work at ${local.origin}, not at this address.` : "This browser has no passkeys here.", true);
} else if (sessionStorage.getItem(PAGE_SECRET)) {
  run(start);
} else {
  $("sign-in").hidden = false;
}
