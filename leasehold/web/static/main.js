// Brings the pages to life. Each part stands alone; a page without scripts can still be read.
import { startActions } from "./actions.js";
import { startBulk } from "./bulk.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startLook } from "./look.js";
import { startTimes } from "./times.js";

startLook();
startTimes();
startActions();
startBulk();
startKeys();
startLive();
document.documentElement.dataset.ready = "";
