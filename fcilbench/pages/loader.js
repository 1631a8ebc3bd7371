// Of a report that is one file: unpacks its code and runs it. The page's policy knows the code by its digest.
import { unpack } from "./unpack.js";

unpack(document.getElementById("code").textContent).then(text => {
  const script = document.createElement("script");
  script.textContent = text;
  document.head.append(script);
});
