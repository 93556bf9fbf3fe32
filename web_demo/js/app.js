/** The page: two tabs over what one gateway serves. */

import { Bulletin } from "./bulletin.js";
import { ChatTab } from "./chat.js";
import { GatewayWatch, isChatModel } from "./gateway_watch.js";
import { Tabs } from "./tabs.js";
import { VideoTab } from "./video.js";

const tabs = new Tabs();
const watch = new GatewayWatch();
const bulletin = new Bulletin();
watch.addEventListener("news", ({ detail }) => bulletin.show(detail));
tabs.begin();
new VideoTab({ tabs, watch }).begin();
new ChatTab({ tabs, watch }).begin();
watch.addEventListener("models", ({ detail: { models } }) => {
  const isChatOnly = models.length > 0 && models.every(isChatModel);
  if (isChatOnly && !tabs.isAddressed) tabs.select("chat");
}, { once: true });
watch.ask();
