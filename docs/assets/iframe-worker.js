// Browsers give no workers to pages opened from a disk. There the search runs in a hidden frame instead: it needs
// messages in both directions and a global scope of its own, nothing more. The name keeps the plugin `offline`
// from fetching a script of that name whenever a page opens.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => {
        frame.addEventListener("load", () => resolve(this.start(frame, url)), {once: true});
      });
      document.body.append(frame);
    }

    start(frame, url) {
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      return new Promise((resolve) => {
        script.onload = () => resolve(inside);
        frame.contentDocument.body.append(script);
      });
    }

    async postMessage(data) {
      (await this.ready).dispatchEvent(new MessageEvent("message", {data}));
    }
  };
}
