/** Module Worker around the uplink: socket and JPEG encoding stay off the page's thread. */

import { UplinkHost } from "./uplink.js";

const host = new UplinkHost((message, transfer = []) => self.postMessage(message, transfer));
self.onmessage = (event) => host.receive(event.data);
