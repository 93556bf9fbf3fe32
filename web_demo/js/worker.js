/** Module Worker around Uplink: socket and JPEG encoding stay off the page's thread. */

import { Uplink } from "./uplink.js";

const uplink = new Uplink((message, transfer = []) => self.postMessage(message, transfer));
self.onmessage = (event) => uplink.receive(event.data);
