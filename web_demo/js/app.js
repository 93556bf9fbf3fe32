/** The page: three tabs over what one gateway serves. */

import { Bulletin } from "./bulletin.js";
import { ChatTab } from "./chat.js";
import { DeliveryTab } from "./delivery.js";
import { GatewayWatch, isChatModel } from "./gateway_watch.js";
import { Tabs } from "./tabs.js";
import { VideoTab } from "./video.js";

const tabs = new Tabs();
const watch = new GatewayWatch();
const bulletin = new Bulletin();
watch.addEventListener("news", ({ detail }) => bulletin.show(detail));
tabs.begin();
const video = new VideoTab({ tabs, watch });
const chat = new ChatTab({ tabs, watch });
video.begin();
chat.begin();
new DeliveryTab({ tabs, watch, chat, video }).begin();
watch.addEventListener("models", ({ detail: { models } }) => {
  const isChatOnly = models.length > 0 && models.every(isChatModel);
  if (isChatOnly && !tabs.isAddressed) tabs.select("chat");
}, { once: true });
watch.ask();
