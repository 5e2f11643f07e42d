// Ledger: where else the same content is. Pointing marks it for the moment, a click until the next one.

function ledger() {
  const links = [...document.querySelectorAll(".ledger .link")];
  let kept = "";
  function mark(digest) {
    document.querySelector(".ledger").classList.toggle("tracing", digest !== "");
    for (const link of links) {
      link.classList.toggle("lit", link.dataset.digest === digest);
      link.setAttribute("aria-pressed", String(kept !== "" && link.dataset.digest === kept));
    }
  }
  for (const link of links) {
    link.addEventListener("mouseenter", () => mark(link.dataset.digest));
    link.addEventListener("mouseleave", () => mark(kept));
    link.addEventListener("click", () => { kept = kept === link.dataset.digest ? "" : link.dataset.digest; mark(kept); });
  }
}
